"""Which image goes with which mask: two folders, and what the names in them have in common.

Folders are found by their names: ``images`` and ``masks``, ``JPEGImages`` and
``SegmentationClass``, ...; else ``train`` and ``trainannot`` (or ``train_labels``, ...), for every
such part; else a pair of folders in each of ``train``, ``val``, ... An image and its mask have one
path below their folders, without the ending. Where most have not, one word at the end of all names
of a side, or at their beginning, may differ: ``0001`` and ``0001_mask``, ``image_1`` and ``gt_1``.

``'folder/{images/*,masks/*_mask}'`` says all of it: ``*`` is what the two have in common.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from shardwriter.errors import OptionError, SourceError
from shardwriter.images.headers import EXTENSIONS
from shardwriter.sources.folder_files import scan, walk
from shardwriter.storage.inputs import Entry, Tree, inputs_for

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
_SEPARATOR: Final = re.compile(r"[-_. ]+")
_MOST_WORDS: Final = 8  # of a side that are tried, the most frequent ones


class Side(NamedTuple):
    """The images, or the masks: what their names have around the part that pairs them."""

    folder: str
    head: str = ""
    tail: str = ""
    ending: str = ""  # ".png": only these files

    @property
    def pattern(self) -> str:
        """What a person would write for it."""
        return f"{self.folder}/{self.head}*{self.tail}{self.ending}"

    def shared(self, name: str) -> str | None:
        """Return what a name has in common with its partner's; None: it does not fit."""
        folder, slash, base = name.rpartition("/")
        end = len(base) - len(self.tail)
        if end <= len(self.head) or not base.startswith(self.head) or base[end:] != self.tail:
            return None
        return f"{folder}{slash}{base[len(self.head) : end]}"


class Sides(NamedTuple):
    """Where images and masks lie; folders are below the root."""

    images: Side
    masks: Side

    @property
    def spec(self) -> str:
        """What a person would write for them."""
        return f"{{{self.images.pattern},{self.masks.pattern}}}"


# -- folders ---------------------------------------------------------------------------------------


def parse_spec(data: str) -> tuple[str, Sides, bool] | None:
    """Take ``folder/{images,masks}`` apart; None where a path is no such thing.

    Returns:
        The folder, the sides, and whether patterns say what the names have in common.

    Raises:
        OptionError: It is one, and can not be carried out.
    """
    found = _SPEC.fullmatch(data)
    if found is None:
        return None
    root = found["root"] or "."
    if len(root) > 1:
        root = root.removesuffix("/")
    sides = Sides(_side(found["images"], data), _side(found["masks"], data))
    one, other = (f"{side.folder}/" for side in sides)
    if one.startswith(other) or other.startswith(one):
        raise OptionError(
            "images and masks lie in one folder, or one of the two in the other", path=data
        )
    return root, sides, "*" in found["images"] or "*" in found["masks"]


def _side(text: str, data: str) -> Side:
    pattern = text.strip("/")
    folder, _, name = pattern.rpartition("/") if "*" in pattern else (pattern, "", "*")
    if "*" in folder or name.count("*") > 1 or not {"", ".", ".."}.isdisjoint(folder.split("/")):
        raise OptionError(
            f"{text!r} is no folder below the first, nor one with a single * in its last name",
            path=data,
            hint="as in 'data/{images/*,masks/*_mask}'",
        )
    head, _, tail = name.partition("*")
    ending = next((known for known in EXTENSIONS if tail.lower().endswith(known)), "")
    cut = len(tail) - len(ending)
    return Side(folder, head, tail[:cut], tail[cut:])


def find_sides(tree: Tree, root: str) -> list[Sides]:
    """Return the folders that hold images and masks by their names, part by part.

    Raises:
        SourceError: Several folders would do.
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
    """Tell whether the folders' names mean pairs: ``cat`` beside ``cat_mask`` may be classes."""
    known = {side.folder for part in parts for side in part}
    if any(name.lower() in _PARTS | {*IMAGE_FOLDERS} for name in {f.split("/")[0] for f in known}):
        return True
    return not any(
        _holds_images(tree, root, name) for name in _folders(tree, root) if name not in known
    )


def may_be_sides(root: str) -> bool:
    """Tell with few requests whether a large folder of a store is worth listing all of it."""
    return any(
        inputs_for(root).is_directory(f"{root.rstrip('/')}/{name}")
        for name in (*IMAGE_FOLDERS, *map(str.title, IMAGE_FOLDERS), *_AS_WRITTEN, *sorted(_PARTS))
    )


def _by_name(tree: Tree, root: str, above: str, names: Sequence[str]) -> Sides | None:
    def those(known: Sequence[str]) -> list[str]:
        found = [above + name for name in names if name.lower() in known]
        return [folder for folder in found if _holds_images(tree, root, folder)]

    images = those(IMAGE_FOLDERS)
    masks = those(MASK_FOLDERS) if images else []
    return _only(root, images, masks) if masks else None


def _only(root: str, images: Sequence[str], masks: Sequence[str]) -> Sides:
    choices = [Sides(Side(image), Side(mask)) for image in images for mask in masks]
    if len(choices) > 1:
        raise _ambiguous("several folders may be images and masks", root, choices)
    return choices[0]


def _ambiguous(message: str, root: str, choices: Iterable[Sides]) -> SourceError:
    specs = sorted(sides.spec for sides in choices)
    told = [shlex.quote(os.path.join(root, spec)) for spec in specs]
    return SourceError(
        f"{message}: {', '.join(specs)}",
        path=root,
        hint=f"say which: {' or '.join(told)}; or --format image-folder, where folders are classes",
    )


def _folders(tree: Tree, directory: str) -> list[str]:
    return [entry.name for entry in scan(tree, directory) if entry.is_dir()]


def _holds_images(tree: Tree, root: str, folder: str) -> bool:
    return next(walk(tree, root, folder, EXTENSIONS, Counter()), None) is not None


# -- names -----------------------------------------------------------------------------------------


Listed = tuple[Entry, str]


class Pairs(NamedTuple):
    """What :func:`pair_up` found.

    Attributes:
        pairs: Image and mask, in the order of the images; behind them masks alone, of every part.
        sides: Where they lie, and how their names go together.
    """

    pairs: list[tuple[Listed | None, Listed | None]]
    sides: list[Sides]


def pair_up(
    root: str,
    parts: Sequence[Sides],
    listing: Callable[[str], Iterable[Listed]],
    *,
    looking: bool,
) -> Pairs:
    """Pair the images of some folders with their masks.

    Args:
        root: The folder, for messages.
        parts: Where images and masks lie.
        listing: Lists the images at and below a folder.
        looking: Whether words that only one side's names have are found by looking.

    Raises:
        SourceError: An image has two masks, or a mask two images, or words differ in two ways.
    """
    names = [(_by_stem(sides.images, listing), _by_stem(sides.masks, listing)) for sides in parts]
    if looking:
        found = _find_words(
            root,
            parts[0],
            [f"{part}/{stem}" for part, (images, _) in enumerate(names) for stem in images],
            [f"{part}/{stem}" for part, (_, masks) in enumerate(names) for stem in masks],
        )
        parts = [_with_words(sides, found) for sides in parts]
    pairs: list[tuple[Listed | None, Listed | None]] = []
    for sides, (images, masks) in zip(parts, names, strict=True):
        alone = _by_shared(root, sides.masks, masks, looking=looking)
        for shared, image in _by_shared(root, sides.images, images, looking=looking).items():
            pairs.append((image, alone.pop(shared, None)))
        pairs += [(None, mask) for mask in alone.values()]
    return Pairs(pairs, list(parts))


def _by_stem(side: Side, listing: Callable[[str], Iterable[Listed]]) -> dict[str, list[Listed]]:
    found: dict[str, list[Listed]] = {}
    for entry, key in listing(side.folder):
        stem, ending = os.path.splitext(key[len(side.folder) + 1 :])
        if side.ending in ("", ending):
            found.setdefault(stem, []).append((entry, key))
    return found


def _by_shared(
    root: str, side: Side, by_stem: Mapping[str, list[Listed]], *, looking: bool
) -> dict[str, Listed]:
    found: dict[str, Listed] = {}
    for stem, files in by_stem.items():
        shared = side.shared(stem)
        if len(files) > 1 and (looking or shared is not None):
            names = " and ".join(repr(key) for _, key in files)
            raise SourceError(
                f"which of them is meant can not be told: {names}",
                path=root,
                hint="leave one of them there, or say which ending is meant, as in "
                f"'{side.pattern}{os.path.splitext(files[0][1])[1]}'",
            )
        if shared is not None:
            found[shared] = files[0]
        elif looking:
            found[f"/{side.folder}/{stem}"] = files[0]  # nobody else's name begins so
    return found


def _find_words(root: str, folders: Sides, images: Sequence[str], masks: Sequence[str]) -> Sides:
    """Return what stands around the names of images and of masks; of a side only that counts.

    Raises:
        SourceError: Several choices pair about as many, and not the same ones.
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
    # The most pairs; where several words give the same, the shortest.
    choices.sort(key=lambda choice: (-choice[0], len(choice[1].spec), choice[1]))
    if not choices:
        return Sides(plain, plain)
    best = choices[0]
    rivals = [best]
    for choice in choices[1:]:
        if 2 * choice[0] > best[0] and all(_contradict(choice[2], known[2]) for known in rivals):
            rivals.append(choice)
    if len(rivals) > 1:
        raise _ambiguous(
            "names of images and masks go together in several ways",
            root,
            [_with_words(folders, words) for _, words, _ in rivals],
        )
    return best[1]


def _contradict(a: Mapping[str, str], b: Mapping[str, str]) -> bool:
    """Tell whether an image has another mask, or a mask another image."""
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
    """Return the most frequent words; numbers are none, as they tell files from each other."""
    counts: Counter[str] = Counter()
    for name in names:
        base = name.rpartition("/")[2]
        counts.update(word(base, cut) for cut in _SEPARATOR.finditer(base))
    told = [(-count, text) for text, count in counts.items() if any(map(str.isalpha, text))]
    return [text for _, text in sorted(told)[:_MOST_WORDS]]
