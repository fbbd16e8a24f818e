"""``image-mask``: images with their segmentation masks, paired by name; one record holds both.

SOURCE is a folder with ``images/`` and ``masks/`` in it, or with both side by side (``1.jpg`` and
``1_mask.png``), or ``'folder/{images,masks}'`` where others are meant;
:mod:`shardwriter.sources.image_pairs` tells which names go together. Bytes are
passed through, under the names that DeepLab gave them. Image and mask must be of one size.

An image without a mask, or a mask without an image, is an item too, and loading it is an error:
it stops the run, or is skipped with ``--on-error skip``. A filter that asks for ``item.image and
item.mask`` leaves it out without a gap. Parts (``train``, ``val``, ...) are one dataset.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from shardwriter.errors import OptionError, SourceError
from shardwriter.formats.images import EXTENSIONS
from shardwriter.schema.feature_types import FeatureType
from shardwriter.sources.folder_files import (
    LOOK_FILES,
    ListedFile,
    hash_lines,
    left_out,
    listed_file,
    tree_of,
    walk,
)
from shardwriter.sources.image_files import IMAGE_PLAN, image_features, read_image
from shardwriter.sources.image_pairs import Listed, Pairs, find_mixed, pair_up
from shardwriter.sources.image_sides import (
    IMAGE_FOLDERS,
    MASK_FOLDERS,
    Sides,
    are_certain,
    find_sides,
    may_be_sides,
    parse_spec,
)
from shardwriter.storage.inputs import Tree, absolute, inputs_for, printable

KIND: Final = "image-mask"

_MASK: Final = "image/segmentation/class/"
_PLAN: Final[Mapping[str, FeatureType]] = {
    **IMAGE_PLAN,
    f"{_MASK}encoded": IMAGE_PLAN["image/encoded"],
    f"{_MASK}filename": IMAGE_PLAN["image/filename"],
    f"{_MASK}format": IMAGE_PLAN["image/format"],
}


class PairItem(NamedTuple):
    """An image and its mask as they were when they were listed.

    Attributes:
        image: The image's path below the root; empty where there is a mask alone.
        mask: The mask's path below the root; empty where there is an image alone.
    """

    image: str
    mask: str
    image_size_bytes: int
    image_mtime_ns: int
    mask_size_bytes: int
    mask_mtime_ns: int


class _PairItems:
    """Pairs in columns, as a tuple each would take several times the memory."""

    def __init__(self) -> None:
        self._names: list[str] = []  # of image and mask, in turns
        self._facts = array("q")  # size and time of either

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
        data: A folder that holds both, or ``'folder/{images,masks}'``.
        skip_errors: Whether a file whose name is not UTF-8 is an item, whose loading is an error;
            else that is raised here.

    Raises:
        SourceError: There are no pairs, or it can not be told what goes together.
        OptionError: ``{images,masks}`` are no folders.
    """

    kind = KIND
    random_access = True
    travels = True
    stable = True
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
            parts, looking = _found_sides(tree, self._root)
        else:
            parts, looking = [spec[1]], not spec[2]
            for side in spec[1]:
                path = os.path.join(self._root, side.folder)
                if not self._inputs.is_directory(path):
                    raise OptionError("there is no such folder", path=path)
        if not parts:
            raise SourceError(
                "no folder of images and no folder of masks are in this folder",
                path=self._root,
                hint=f"looked for one of {', '.join(IMAGE_FOLDERS)} with one of "
                f"{', '.join(MASK_FOLDERS)}, here and in train, val, ..., and for train with "
                f"trainannot; others are said as '{self._root}/{{images,masks}}', and those of "
                f"one folder as '{self._root}/{{*,*_mask}}'",
            )
        found = _pair(tree, self._root, parts, skipped, looking=looking)
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
                "no image has a mask of its name: there are "
                f"{len(self._alone[0]):,} images, as {', '.join(images) or 'none'}, and "
                f"{len(self._alone[1]):,} masks, as {', '.join(masks) or 'none'}",
                path=self._root,
                hint="say what their names have in common, as in "
                f"'{self._root}/{{{parts[0].images.folder}/*,{parts[0].masks.folder}/*_mask}}'",
            )
        self.num_items: int | None = len(self._items)
        self.notes: Sequence[str] = [*self._told(spec is None), *left_out(skipped, "images")]

    def items(self) -> Iterator[PairItem]:
        """Yield the images of a part in order of their names, then masks alone of all parts."""
        return iter(self._items)

    def item(self, item_index: int) -> PairItem:
        """Return one pair."""
        return self._items[item_index]

    def key(self, item: PairItem) -> str:
        """Return the image's path below the root; the mask's, where there is no image."""
        return printable(item.image or item.mask)

    def size_bytes(self, item: PairItem) -> int:
        """Return the size of both files."""
        return item.image_size_bytes + item.mask_size_bytes

    def load(self, item: PairItem) -> dict[str, Any]:
        """Read an image and its mask.

        Raises:
            SourceError: One of them is missing, can not be read or is no image; or sizes differ.
            SourceChanged: One of them has changed since it was listed.
        """
        if not item.image or not item.mask:
            raise self._missing(item)
        (image, header), (mask, mask_header) = (
            read_image(self._inputs, self._folder, ListedFile(*file), self._root)
            for file in ((item.image, *item[2:4]), (item.mask, *item[4:6]))
        )
        if header[1:] != mask_header[1:]:
            raise SourceError(
                f"the image has {header.height} x {header.width} pixels (height x width), and its "
                f"mask {item.mask!r} has {mask_header.height} x {mask_header.width}",
                path=os.path.join(self._root, item.image),
                hint="make them of one size, or move both out of their folders",
            )
        return {
            **image_features(item.image, image, header),
            f"{_MASK}encoded": mask,
            f"{_MASK}filename": item.mask,
            f"{_MASK}format": mask_header.format,
        }

    def digest(self) -> dict[str, Any]:
        """Hash the files' relative paths and sizes."""
        return self._hashed(
            f"{item.image}\0{item.image_size_bytes}\0{item.mask}\0{item.mask_size_bytes}\n"
            for item in self._items
        )

    def fingerprint(self) -> dict[str, Any]:
        """Hash paths, sizes and modification times."""
        return self._hashed("\0".join(map(str, item)) + "\n" for item in self._items)

    def _hashed(self, lines: Iterable[str]) -> dict[str, Any]:
        return {"files": hash_lines(lines), "num_items": self.num_items}

    def _missing(self, item: PairItem) -> SourceError:
        images, masks = map(len, self._alone)
        here, there = ("image", "mask") if item.image else ("mask", "image")
        name = item.image or item.mask
        hint = "--on-error skip leaves it out"
        for sides in self._sides:
            own, other = sides if item.image else (sides.masks, sides.images)
            is_below = name.startswith(own.prefix)
            shared = own.shared(os.path.splitext(name[len(own.prefix) :])[0]) if is_below else None
            if shared is not None:
                folder, slash, base = f"{other.prefix}{shared}".rpartition("/")
                partner = f"{folder}{slash}{other.head}{base}{other.tail}{other.ending or '.*'}"
                hint = f"it would be {partner!r}; {hint}"
                break
        return SourceError(
            f"this {here} has no {there} (of all, {images:,} image(s) have no mask, and {masks:,} "
            "mask(s) no image)",
            path=os.path.join(self._root, name),
            hint=hint,
        )

    def _told(self, was_found: bool) -> Iterator[str]:
        specs = [sides.spec for sides in self._sides]
        other = "; --format image-folder takes folders as classes" if was_found else ""
        yield f"images with their masks, by name: {', '.join(map(printable, specs))}{other}"
        if len(specs) > 1:
            one = printable(os.path.join(self._root, specs[0]))
            yield f"{len(specs)} parts are one dataset; SOURCE '{one}' is the first alone"
        for names, what in zip(
            self._alone, ("image(s) without mask", "mask(s) without image"), strict=True
        ):
            if names:
                more = ", ..." if len(names) > 5 else ""
                yield f"{len(names):,} {what}: {', '.join(names[:5])}{more}"


def has_pairs(root: str) -> bool:
    """Tell whether a folder holds images and masks, by the names of its folders and files."""
    try:
        tree = tree_of(root, LOOK_FILES)
        if not tree.is_whole:
            if not may_be_sides(root):
                return False
            tree = tree_of(root)
        parts, looking = _found_sides(tree, root)
        if not parts or not are_certain(tree, root, parts):
            return False
        pairs = _pair(tree, root, parts, Counter(), looking=looking).pairs
        return any(image and mask for image, mask in pairs)
    except SourceError:
        return True  # the reason is told when the folder is opened


def _found_sides(tree: Tree, root: str) -> tuple[list[Sides], bool]:
    """Return where images and masks lie, and whether their names are still to be looked at."""
    parts = find_sides(tree, root)
    mixed = None if parts else find_mixed(tree, root)
    return (parts, True) if mixed is None else ([mixed], False)


def _pair(
    tree: Tree, root: str, parts: Sequence[Sides], skipped: Counter[str], *, looking: bool
) -> Pairs:
    def listing(folder: str) -> Iterator[Listed]:
        return walk(tree, root, folder, EXTENSIONS, skipped)

    return pair_up(root, parts, listing, looking=looking)
