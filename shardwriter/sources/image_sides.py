"""Where images and their masks lie: two folders, or one that holds both.

Folders are found by their names: ``images`` and ``masks``, ``JPEGImages`` and
``SegmentationClass``, ...; else ``train`` and ``trainannot`` (or ``train_labels``, ...), for every
such part; else a pair of folders in each of ``train``, ``val``, ...

``'folder/{images/*,masks/*_mask}'`` says all of it: ``*`` is what the names of an image and its
mask have in common. ``'folder/{*,*_mask}'`` says it of one folder; what fits both belongs to the
side that says more.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from shardwriter.errors import OptionError, SourceError
from shardwriter.formats.images import EXTENSIONS
from shardwriter.sources.folder_files import scan, walk
from shardwriter.storage.inputs import Tree, inputs_for

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
    """The images, or the masks: what their names have around the part that pairs them."""

    folder: str
    head: str = ""
    tail: str = ""
    ending: str = ""  # ".png": only these files

    @property
    def pattern(self) -> str:
        """What a person would write for it."""
        return f"{self.prefix}{self.head}*{self.tail}{self.ending}"

    @property
    def prefix(self) -> str:
        """How the paths of its files begin."""
        return self.folder and f"{self.folder}/"

    @property
    def words(self) -> tuple[str, str, str]:
        """What its names have around the part that pairs them."""
        return self.head, self.tail, self.ending

    def fits(self, key: str) -> bool:
        """Tell whether a path is that of one of its files."""
        stem, ending = os.path.splitext(key)
        return self.ending in ("", ending) and self.shared(stem) is not None

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

    @property
    def are_mixed(self) -> bool:
        """Whether both lie in one folder."""
        return self.images.folder == self.masks.folder


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
    one, other = (side.prefix for side in sides)
    if sides.are_mixed and sides.images.words == sides.masks.words:
        raise OptionError(
            "images and masks are the same files",
            path=data,
            hint="say how the names of masks differ, as in 'data/{*,*_mask}'",
        )
    if not sides.are_mixed and (one.startswith(other) or other.startswith(one)):
        raise OptionError("one of the two folders lies in the other", path=data)
    return root, sides, "*" in found["images"] or "*" in found["masks"]


def _side(text: str, data: str) -> Side:
    pattern = text.strip("/")
    folder, _, name = pattern.rpartition("/") if "*" in pattern else (pattern, "", "*")
    is_below = folder == "" and "*" in pattern  # the root itself
    is_below = is_below or {"", ".", ".."}.isdisjoint(folder.split("/"))
    if "*" in folder or name.count("*") > 1 or not is_below:
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
        raise ambiguous("several folders may be images and masks", root, choices)
    return choices[0]


def ambiguous(message: str, root: str, choices: Iterable[Sides]) -> SourceError:
    """Return the error for several sides that all would do."""
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
