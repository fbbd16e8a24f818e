"""``image-mask``: images with their segmentation masks, paired by name; a record has both.

SOURCE is a folder with ``images/`` and ``masks/`` in it, or with both side by side (``1.jpg`` and
``1_mask.png``), or ``'folder/{images,masks}'`` for folders with other names. Bytes are written
unchanged, under the feature names of DeepLab. Image and mask must have the same size.

Folders are found by their names: ``images`` and ``masks``, ``JPEGImages`` and
``SegmentationClass``, ...; else ``train`` and ``trainannot`` (or ``train_labels``, ...), for every
such part; else a pair of folders in each of ``train``, ``val``, ... Parts are one dataset.

``'folder/{images/*,masks/*_mask}'`` sets folders and names: ``*`` is the common part of the names
of an image and its mask. ``'folder/{*,*_mask}'`` does so for one folder; a file that fits both
patterns belongs to the longer one.

An image and its mask have the same path in their folders, without the ending. If most have not, one
word at the end of all names of a side, or at their beginning, may differ: ``0001`` and
``0001_mask``, ``image_1`` and ``gt_1``.

An image without a mask, or a mask without an image, is an item, too, which raises when it is
loaded: this ends the run, or is skipped with ``--on-error skip``. A filter of ``item.image and
item.mask`` leaves it out without a gap.
"""

from __future__ import annotations

import os
import re
import shlex
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from shardwriter.errors import OptionError, SourceError
from shardwriter.formats import EXTENSIONS
from shardwriter.schema import FeatureType
from shardwriter.sources.image_folder import IMAGE_PLAN, image_features, read_image
from shardwriter.sources.input_files import (
    LOOK_FILES,
    ListedFile,
    hash_lines,
    left_out,
    listed_file,
    scan,
    tree_of,
    walk,
)
from shardwriter.storage import (
    Entry,
    Tree,
    absolute,
    inputs_for,
    printable,
)

IMAGE_FOLDERS: Final = ("images", "image", "imgs", "img", "jpegimages", "leftimg8bit")
MASK_FOLDERS: Final = (
    *("masks", "mask", "labels", "label", "annotations", "annotation", "annot", "gt", "gtfine"),
    *("segmentation", "segmentations", "segmentationclass", "segmentationobject"),
)
_MASK_ENDINGS: Final = ("annot", "masks", "mask", "labels", "label", "annotations", "gt")
_PARTS: Final = frozenset(
    {"train", "training", "val", "valid", "validation", "trainval", "test", "testing", "dev"}
)

_AS_WRITTEN: Final = ("JPEGImages", "leftImg8bit")

_SPEC: Final = re.compile(r"(?P<root>.*/)?\{(?P<images>[^{},]+),(?P<masks>[^{},]+)\}/?", re.DOTALL)


class Side(NamedTuple):
    """The images, or the masks: their folder, and their names around the common part."""

    folder: str
    head: str = ""
    tail: str = ""
    ending: str = ""  # such as ".png", for only these files

    @property
    def pattern(self) -> str:
        """The pattern as a user writes it."""
        return f"{self.prefix}{self.head}*{self.tail}{self.ending}"

    @property
    def prefix(self) -> str:
        """The prefix of the paths of its files."""
        return self.folder and f"{self.folder}/"

    @property
    def words(self) -> tuple[str, str, str]:
        """The parts of its names beside the common part."""
        return self.head, self.tail, self.ending

    def fits(self, key: str) -> bool:
        """Return whether a path is one of its files."""
        stem, ending = os.path.splitext(key)
        return self.ending in ("", ending) and self.shared(stem) is not None

    def shared(self, name: str) -> str | None:
        """Return the common part of a name; None if the name does not fit."""
        folder, slash, base = name.rpartition("/")
        end = len(base) - len(self.tail)
        if end <= len(self.head) or not base.startswith(self.head) or base[end:] != self.tail:
            return None
        return f"{folder}{slash}{base[len(self.head) : end]}"


class Sides(NamedTuple):
    """Images and masks of a part; folders are relative to the root."""

    images: Side
    masks: Side

    @property
    def spec(self) -> str:
        """Both patterns in braces, as a user writes them."""
        return f"{{{self.images.pattern},{self.masks.pattern}}}"

    @property
    def are_mixed(self) -> bool:
        """Whether both are in one folder."""
        return self.images.folder == self.masks.folder


# -- folders ---------------------------------------------------------------------------------------


def parse_spec(data: str) -> tuple[str, Sides, bool] | None:
    """Return the parts of ``folder/{images,masks}``; None for other paths.

    Returns:
        The folder, the sides, and whether they are patterns of names.

    Raises:
        OptionError: The folders or patterns are invalid.
    """
    found = _SPEC.fullmatch(data)
    if found is None:
        return None
    root = found["root"] or "."
    if len(root) > 1:
        root = root.removesuffix("/")
    sides = Sides(_side(found["images"], data), _side(found["masks"], data))
    one, other = (side.prefix for side in sides)
    if sides.are_mixed and sides.images.words == sides.masks.words:
        raise OptionError(
            "images and masks are the same files",
            path=data,
            hint="add how the names of masks differ, such as 'data/{*,*_mask}'",
        )
    if not sides.are_mixed and (one.startswith(other) or other.startswith(one)):
        raise OptionError("one of the two folders is in the other", path=data)
    return root, sides, "*" in found["images"] or "*" in found["masks"]


def _side(text: str, data: str) -> Side:
    pattern = text.strip("/")
    folder, _, name = pattern.rpartition("/") if "*" in pattern else (pattern, "", "*")
    is_below = folder == "" and "*" in pattern  # the root itself
    is_below = is_below or {"", ".", ".."}.isdisjoint(folder.split("/"))
    if "*" in folder or name.count("*") > 1 or not is_below:
        raise OptionError(
            f"{text!r} is not a relative folder, nor one with a single * in its last name",
            path=data,
            hint="such as 'data/{images/*,masks/*_mask}'",
        )
    head, _, tail = name.partition("*")
    ending = next((known for known in EXTENSIONS if tail.lower().endswith(known)), "")
    cut = len(tail) - len(ending)
    return Side(folder, head, tail[:cut], tail[cut:])


def find_sides(tree: Tree, root: str) -> list[Sides]:
    """Return the folders of images and masks by their names, for each part.

    Raises:
        SourceError: Several folders have such names.
    """
    folders = _folders(tree, root)
    one = _by_name(tree, root, "", folders)
    if one:
        return [one]
    parts, there = [], {*folders}
    for name in folders:
        named = {name + dash + ending for ending in _MASK_ENDINGS for dash in ("", "_", "-")}
        masks = [f for f in sorted(named & there) if _holds_images(tree, root, f)]
        if masks and _holds_images(tree, root, name):
            parts.append(_only(root, [name], masks))
    if parts:
        return parts
    found = (
        _by_name(tree, root, f"{name}/", _folders(tree, os.path.join(root, name)))
        for name in folders
        if name.lower() in _PARTS
    )
    return [sides for sides in found if sides]


def are_certain(tree: Tree, root: str, parts: Sequence[Sides]) -> bool:
    """Return whether folder names imply pairs; ``cat`` and ``cat_mask`` may be classes."""
    known = {side.folder for part in parts for side in part}
    if any(name.lower() in _PARTS | {*IMAGE_FOLDERS} for name in {f.split("/")[0] for f in known}):
        return True
    return not any(
        _holds_images(tree, root, name) for name in _folders(tree, root) if name not in known
    )


def may_be_sides(root: str) -> bool:
    """Return, with few requests, whether a large folder of a store may have such folders."""
    return any(
        inputs_for(root).is_directory(f"{root.rstrip('/')}/{name}")
        for name in (*IMAGE_FOLDERS, *map(str.title, IMAGE_FOLDERS), *_AS_WRITTEN, *sorted(_PARTS))
    )


def _by_name(tree: Tree, root: str, above: str, names: Sequence[str]) -> Sides | None:
    def find(known: Sequence[str]) -> list[str]:
        found = [above + name for name in names if name.lower() in known]
        return [folder for folder in found if _holds_images(tree, root, folder)]

    images = find(IMAGE_FOLDERS)
    masks = find(MASK_FOLDERS) if images else []
    return _only(root, images, masks) if masks else None


def _only(root: str, images: Sequence[str], masks: Sequence[str]) -> Sides:
    choices = [Sides(Side(image), Side(mask)) for image in images for mask in masks]
    if len(choices) > 1:
        raise ambiguous("several folders may have images and masks", root, choices)
    return choices[0]


def ambiguous(message: str, root: str, choices: Iterable[Sides]) -> SourceError:
    """Return the error for several sides that fit."""
    specs = sorted(sides.spec for sides in choices)
    paths = [shlex.quote(os.path.join(root, spec)) for spec in specs]
    return SourceError(
        f"{message}: {', '.join(specs)}",
        path=root,
        hint=f"give {' or '.join(paths)}; or add --format image-folder for class folders",
    )


def _folders(tree: Tree, directory: str) -> list[str]:
    return [entry.name for entry in scan(tree, directory) if entry.is_dir()]


def _holds_images(tree: Tree, root: str, folder: str) -> bool:
    return next(walk(tree, root, folder, EXTENSIONS, Counter()), None) is not None


# -- pairs -----------------------------------------------------------------------------------------

_SEPARATOR: Final = re.compile(r"[-_. ]+")
_MAX_WORDS: Final = 8  # of a side to try, the most frequent ones
_MASK_WORDS: Final = frozenset({*MASK_FOLDERS, "seg", "segm"})

Listed = tuple[Entry, str]


class Pairs(NamedTuple):
    """The result of :func:`pair_up`.

    Attributes:
        pairs: Image and mask, in the order of images; then masks without images, of all parts.
        sides: The folders, and the patterns of their names.
    """

    pairs: list[tuple[Listed | None, Listed | None]]
    sides: list[Sides]


def pair_up(
    root: str,
    parts: Sequence[Sides],
    listing: Callable[[str], Iterable[Listed]],
    *,
    find_words: bool,
) -> Pairs:
    """Pair the images of folders with their masks.

    Args:
        root: The folder, for error messages.
        parts: The folders of images and masks.
        listing: Lists the images in and below a folder.
        find_words: Detect words that only the names of one side have.

    Raises:
        SourceError: An image has two masks, or a mask two images; or several words fit.
    """
    names = [_by_stems(sides, listing) for sides in parts]
    if find_words:
        found = _find_words(
            root,
            parts[0],
            [f"{part}/{stem}" for part, (images, _) in enumerate(names) for stem in images],
            [f"{part}/{stem}" for part, (_, masks) in enumerate(names) for stem in masks],
        )
        parts = [_with_words(sides, found) for sides in parts]
    pairs: list[tuple[Listed | None, Listed | None]] = []
    for sides, (images, masks) in zip(parts, names, strict=True):
        alone = _by_shared(root, sides.masks, masks, find_words=find_words)
        for shared, image in _by_shared(root, sides.images, images, find_words=find_words).items():
            pairs.append((image, alone.pop(shared, None)))
        pairs += [(None, mask) for mask in alone.values()]
    return Pairs(pairs, list(parts))


def find_mixed(tree: Tree, root: str) -> Sides | None:
    """Return the name patterns of masks that are beside their images; None if there are none.

    Masks need a word such as ``mask`` in their names, and there must be about as many masks as
    images. Subfolders are ignored: they may be classes.

    Raises:
        SourceError: Several words fit.
    """
    names = [os.path.splitext(entry.name) for entry in scan(tree, root)]
    stems = [stem for stem, ending in names if ending.lower() in EXTENSIONS]
    masks = [stem for stem in stems if not _MASK_WORDS.isdisjoint(_SEPARATOR.split(stem.lower()))]
    images = sorted({*stems} - {*masks})
    if not masks or not images or not len(images) / 2 <= len(masks) <= 2 * len(images):
        return None
    words = _find_words(root, Sides(Side(""), Side("")), images, masks)
    return None if words.masks.words == words.images.words else words


def _by_stems(
    sides: Sides, listing: Callable[[str], Iterable[Listed]]
) -> tuple[dict[str, list[Listed]], dict[str, list[Listed]]]:
    images = _by_stem(sides.images, listing)
    masks = _by_stem(sides.masks, listing)
    if sides.are_mixed:
        if len("".join(sides.masks.words)) >= len("".join(sides.images.words)):
            images = _without(images, sides.masks)
        else:
            masks = _without(masks, sides.images)
    return images, masks


def _by_stem(side: Side, listing: Callable[[str], Iterable[Listed]]) -> dict[str, list[Listed]]:
    found: dict[str, list[Listed]] = {}
    for entry, key in listing(side.folder):
        stem, ending = os.path.splitext(key[len(side.prefix) :])
        if side.ending in ("", ending):
            found.setdefault(stem, []).append((entry, key))
    return found


def _without(by_stem: Mapping[str, list[Listed]], other: Side) -> dict[str, list[Listed]]:
    """Return the files without those of the other side."""
    left = {
        stem: [(entry, key) for entry, key in files if not other.fits(key[len(other.prefix) :])]
        for stem, files in by_stem.items()
    }
    return {stem: files for stem, files in left.items() if files}


def _by_shared(
    root: str, side: Side, by_stem: Mapping[str, list[Listed]], *, find_words: bool
) -> dict[str, Listed]:
    found: dict[str, Listed] = {}
    for stem, files in by_stem.items():
        shared = side.shared(stem)
        if len(files) > 1 and (find_words or shared is not None):
            names = " and ".join(repr(key) for _, key in files)
            raise SourceError(
                f"ambiguous files: {names}",
                path=root,
                hint="keep only one of them, or choose an ending, such as "
                f"'{side.pattern}{os.path.splitext(files[0][1])[1]}'",
            )
        if shared is not None:
            found[shared] = files[0]
        elif find_words:
            found[f"/{side.folder}/{stem}"] = files[0]  # a key that no other file has
    return found


def _find_words(root: str, folders: Sides, images: Sequence[str], masks: Sequence[str]) -> Sides:
    """Return the words around the common part of the names of images and of masks.

    Raises:
        SourceError: Several words give about as many pairs, but other ones.
    """
    plain = Side("")
    enough = min(len(images), len(masks)) / 2
    if len({*images} & {*masks}) >= enough:
        return Sides(plain, plain)
    choices: list[tuple[int, Sides, dict[str, str]]] = []
    for words_of in (_tails, _heads):
        if choices:
            break
        of_masks = [(word, _shared_names(word, masks)) for word in (plain, *words_of(masks))]
        for image_word in (plain, *words_of(images)):
            shared = _shared_names(image_word, images)
            for mask_word, others in of_masks:
                both = shared.keys() & others.keys()
                if len(both) >= max(enough, 1):
                    paired = {shared[name]: others[name] for name in both}
                    choices.append((len(both), Sides(image_word, mask_word), paired))
    # Prefer the most pairs; if several words give the same pairs, the shortest.
    choices.sort(key=lambda choice: (-choice[0], len(choice[1].spec), choice[1]))
    if not choices:
        return Sides(plain, plain)
    best = choices[0]
    rivals = [best]
    for choice in choices[1:]:
        if 2 * choice[0] > best[0] and all(_contradict(choice[2], known[2]) for known in rivals):
            rivals.append(choice)
    if len(rivals) > 1:
        raise ambiguous(
            "the names of images and masks match in several ways",
            root,
            [_with_words(folders, words) for _, words, _ in rivals],
        )
    return best[1]


def _contradict(a: Mapping[str, str], b: Mapping[str, str]) -> bool:
    """Return whether a file has different partners in two pairings."""
    of_masks = {mask: image for image, mask in b.items()}
    return any(
        b.get(image, mask) != mask or of_masks.get(mask, image) != image
        for image, mask in a.items()
    )


def _with_words(sides: Sides, words: Sides) -> Sides:
    return Sides(
        *(
            side._replace(head=word.head, tail=word.tail)
            for side, word in zip(sides, words, strict=True)
        )
    )


def _shared_names(side: Side, names: Sequence[str]) -> dict[str, str]:
    found = ((side.shared(name), name) for name in names)
    return {shared: name for shared, name in found if shared is not None}


def _tails(names: Sequence[str]) -> list[Side]:
    return [Side("", tail=word) for word in _words(names, lambda base, cut: base[cut.start() :])]


def _heads(names: Sequence[str]) -> list[Side]:
    return [Side("", head=word) for word in _words(names, lambda base, cut: base[: cut.end()])]


def _words(names: Sequence[str], word: Callable[[str, re.Match[str]], str]) -> list[str]:
    """Return the most frequent words with a letter; numbers distinguish files, so they are none."""
    counts: Counter[str] = Counter()
    for name in names:
        base = name.rpartition("/")[2]
        counts.update(word(base, cut) for cut in _SEPARATOR.finditer(base))
    words = [(-count, text) for text, count in counts.items() if any(map(str.isalpha, text))]
    return [text for _, text in sorted(words)[:_MAX_WORDS]]


KIND: Final = "image-mask"

_MASK: Final = "image/segmentation/class/"
_PLAN: Final[Mapping[str, FeatureType]] = {
    **IMAGE_PLAN,
    f"{_MASK}encoded": IMAGE_PLAN["image/encoded"],
    f"{_MASK}filename": IMAGE_PLAN["image/filename"],
    f"{_MASK}format": IMAGE_PLAN["image/format"],
}


class PairItem(NamedTuple):
    """An image and its mask when their folders were listed.

    Attributes:
        image: The image's path relative to the root; "" for a mask without an image.
        mask: The mask's path relative to the root; "" for an image without a mask.
    """

    image: str
    mask: str
    image_size_bytes: int
    image_mtime_ns: int
    mask_size_bytes: int
    mask_mtime_ns: int


class _PairItems:
    """Pairs in columns, as tuples would take several times the memory."""

    def __init__(self) -> None:
        self._names: list[str] = []  # of image and mask, alternately
        self._facts = array("q")  # size and time of each file

    def append(self, image: ListedFile | None, mask: ListedFile | None) -> None:
        for file in (image, mask):
            name, size_bytes, mtime_ns = file or ListedFile("", 0, 0)
            self._names.append(name)
            self._facts.extend((size_bytes, mtime_ns))

    def __len__(self) -> int:
        return len(self._names) // 2

    def __getitem__(self, index: int) -> PairItem:
        names, facts = slice(2 * index, 2 * index + 2), slice(4 * index, 4 * index + 4)
        image, mask = self._names[names]
        return PairItem(image, mask, *self._facts[facts])

    def __iter__(self) -> Iterator[PairItem]:
        return map(self.__getitem__, range(len(self)))


class ImageMask:
    """Images and masks, paired by name.

    Args:
        data: A folder with both, or ``'folder/{images,masks}'``.
        skip_errors: Keep a file whose name is not UTF-8 as an item, which raises when it is loaded;
            otherwise raise here.

    Raises:
        SourceError: There are no pairs, or the pairs are ambiguous.
        OptionError: ``{images,masks}`` are not folders.
    """

    kind = KIND
    random_access = True
    sendable = True
    resumable = True
    plan: Mapping[str, FeatureType] = _PLAN
    vocabularies: Mapping[str, list[str]] = {}
    label: str | None = None

    def __init__(self, data: str, *, skip_errors: bool = False) -> None:
        spec = None if inputs_for(data).is_directory(data) else parse_spec(data)
        self._root = data if spec is None else spec[0]
        self._folder = absolute(self._root)  # a map may change the current folder
        self._inputs = inputs_for(self._root)
        if not self._inputs.is_directory(self._root):
            raise OptionError("there is no such folder", path=self._root)
        tree = tree_of(self._root)
        skipped: Counter[str] = Counter()
        if spec is None:
            parts, find_words = _find_all_sides(tree, self._root)
        else:
            parts, find_words = [spec[1]], not spec[2]
            for side in spec[1]:
                path = os.path.join(self._root, side.folder)
                if not self._inputs.is_directory(path):
                    raise OptionError("there is no such folder", path=path)
        if not parts:
            raise SourceError(
                "this folder has no folders of images and masks",
                path=self._root,
                hint=f"searched for one of {', '.join(IMAGE_FOLDERS)} with one of "
                f"{', '.join(MASK_FOLDERS)}, here and in train, val, ..., and for train with "
                f"trainannot; give others as '{self._root}/{{images,masks}}', and a folder with "
                f"both as '{self._root}/{{*,*_mask}}'",
            )
        found = _pair(tree, self._root, parts, skipped, find_words=find_words)
        self._sides = found.sides
        self._items = _PairItems()
        for pair in found.pairs:
            self._items.append(
                *(side and listed_file(*side, skip_errors=skip_errors) for side in pair)
            )
        self._alone = [
            [item.image or item.mask for item in self._items if not item[missing]]
            for missing in (1, 0)
        ]
        num_alone = sum(map(len, self._alone))
        if num_alone == len(self._items):
            images, masks = ([repr(name) for name in names[:1]] for names in self._alone)
            raise SourceError(
                "no image has a mask of the same name: there are "
                f"{len(self._alone[0]):,} images, such as {', '.join(images) or 'none'}, and "
                f"{len(self._alone[1]):,} masks, such as {', '.join(masks) or 'none'}",
                path=self._root,
                hint="give the common part of their names, such as "
                f"'{self._root}/{{{parts[0].images.folder}/*,{parts[0].masks.folder}/*_mask}}'",
            )
        self.num_items: int | None = len(self._items)
        self.notes: Sequence[str] = [*self._make_notes(spec is None), *left_out(skipped, "images")]

    def items(self) -> Iterator[PairItem]:
        """Yield the images of each part in order of their names, then masks without images."""
        return iter(self._items)

    def item(self, item_index: int) -> PairItem:
        """Return one pair."""
        return self._items[item_index]

    def key(self, item: PairItem) -> str:
        """Return the image's path relative to the root, or the mask's if there is no image."""
        return printable(item.image or item.mask)

    def size_bytes(self, item: PairItem) -> int:
        """Return the size of both files."""
        return item.image_size_bytes + item.mask_size_bytes

    def load(self, item: PairItem) -> dict[str, Any]:
        """Return the features of an image and its mask.

        Raises:
            SourceError: One is missing, cannot be read or is not an image; or their sizes differ.
            SourceChanged: One has changed since it was listed.
        """
        if not item.image or not item.mask:
            raise self._missing(item)
        (image, header), (mask, mask_header) = (
            read_image(self._inputs, self._folder, ListedFile(*file), self._root)
            for file in ((item.image, *item[2:4]), (item.mask, *item[4:6]))
        )
        if header[1:] != mask_header[1:]:
            raise SourceError(
                f"the image has {header.height} x {header.width} pixels (height x width), but its "
                f"mask {item.mask!r} has {mask_header.height} x {mask_header.width}",
                path=os.path.join(self._root, item.image),
                hint="resize one of them, or move both out of their folders",
            )
        return {
            **image_features(item.image, image, header),
            f"{_MASK}encoded": mask,
            f"{_MASK}filename": item.mask,
            f"{_MASK}format": mask_header.format,
        }

    def digest(self) -> dict[str, Any]:
        """Return a hash of the files' relative paths and sizes."""
        return self._hash(
            f"{item.image}\0{item.image_size_bytes}\0{item.mask}\0{item.mask_size_bytes}\n"
            for item in self._items
        )

    def fingerprint(self) -> dict[str, Any]:
        """Return a hash of paths, sizes and modification times."""
        return self._hash("\0".join(map(str, item)) + "\n" for item in self._items)

    def _hash(self, lines: Iterable[str]) -> dict[str, Any]:
        return {"files": hash_lines(lines), "num_items": self.num_items}

    def _missing(self, item: PairItem) -> SourceError:
        images, masks = map(len, self._alone)
        here, there = ("image", "mask") if item.image else ("mask", "image")
        name = item.image or item.mask
        hint = "leave it out with --on-error skip"
        for sides in self._sides:
            own, other = sides if item.image else (sides.masks, sides.images)
            is_below = name.startswith(own.prefix)
            shared = own.shared(os.path.splitext(name[len(own.prefix) :])[0]) if is_below else None
            if shared is not None:
                folder, slash, base = f"{other.prefix}{shared}".rpartition("/")
                partner = f"{folder}{slash}{other.head}{base}{other.tail}{other.ending or '.*'}"
                hint = f"add {partner!r}, or {hint}"
                break
        return SourceError(
            f"this {here} has no {there} (in total, {images:,} image(s) without mask and {masks:,} "
            "mask(s) without image)",
            path=os.path.join(self._root, name),
            hint=hint,
        )

    def _make_notes(self, was_found: bool) -> Iterator[str]:
        specs = [sides.spec for sides in self._sides]
        other = "; for class folders add --format image-folder" if was_found else ""
        yield f"images with masks, paired by name: {', '.join(map(printable, specs))}{other}"
        if len(specs) > 1:
            one = printable(os.path.join(self._root, specs[0]))
            yield f"{len(specs)} parts are one dataset; SOURCE '{one}' is only the first"
        for names, what in zip(
            self._alone, ("image(s) without mask", "mask(s) without image"), strict=True
        ):
            if names:
                more = ", ..." if len(names) > 5 else ""
                yield f"{len(names):,} {what}: {', '.join(names[:5])}{more}"


def has_pairs(root: str) -> bool:
    """Return whether a folder has images and masks, by the names of its folders and files."""
    try:
        tree = tree_of(root, LOOK_FILES)
        if not tree.is_whole:
            if not may_be_sides(root):
                return False
            tree = tree_of(root)
        parts, find_words = _find_all_sides(tree, root)
        if not parts or not are_certain(tree, root, parts):
            return False
        pairs = _pair(tree, root, parts, Counter(), find_words=find_words).pairs
        return any(image and mask for image, mask in pairs)
    except SourceError:
        return True  # opening the folder raises the reason


def _find_all_sides(tree: Tree, root: str) -> tuple[list[Sides], bool]:
    """Return the folders of images and masks, and whether to detect words in their names."""
    parts = find_sides(tree, root)
    mixed = None if parts else find_mixed(tree, root)
    return (parts, True) if mixed is None else ([mixed], False)


def _pair(
    tree: Tree, root: str, parts: Sequence[Sides], skipped: Counter[str], *, find_words: bool
) -> Pairs:
    def listing(folder: str) -> Iterator[Listed]:
        return walk(tree, root, folder, EXTENSIONS, skipped)

    return pair_up(root, parts, listing, find_words=find_words)
