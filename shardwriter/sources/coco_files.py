"""Where COCO's files lie: annotations in a folder, and images beside annotations."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Final

from shardwriter.dataset.naming import is_url
from shardwriter.errors import SourceError
from shardwriter.storage.inputs import inputs_for, split

_LOOK_BYTES: Final = 1 << 16
_MAX_FILES: Final = 200  # a folder with more JSON files has one for each image, or none of COCO
_FOLDER_NAMES: Final = ("annotations", "annotation")
_BEGIN: Final = re.compile(rb'\s*\{\s*"(info|licenses|images|annotations|categories)"\s*:\s*[\[{]')
_IMAGES: Final = re.compile(rb'"images"\s*:\s*\[')
_NAMES_IMAGES: Final = re.compile(rb'"annotations"\s*:\s*\[.*"image_id"\s*:', re.DOTALL)


def looks_like_coco(head: bytes) -> bool:
    """Tell by its first bytes whether a file is JSON in COCO's form."""
    head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    line, _, rest = head.partition(b"\n")
    is_lines = line.rstrip().endswith(b"}") and rest.lstrip().startswith(b"{")
    if is_lines or not _BEGIN.match(head):
        return False
    return bool(_IMAGES.search(head) or _NAMES_IMAGES.search(head))


def coco_files(folder: str) -> list[str]:
    """Return the files of COCO's form in a folder, and in ``annotations`` in it."""
    found: list[str] = []
    folders = [folder]
    for place in folders:
        try:
            entries = sorted(inputs_for(place).listing(place), key=lambda entry: entry.name)
        except OSError:
            continue
        if place == folder:
            folders += [
                entry.path
                for entry in entries
                if entry.name.lower() in _FOLDER_NAMES and entry.is_dir()
            ]
        paths = [
            entry.path
            for entry in entries
            if entry.name.lower().endswith(".json") and not entry.name.startswith(".")
        ]
        if len(paths) <= _MAX_FILES:
            found += filter(is_coco_file, paths)
    return found


def is_coco_file(path: str) -> bool:
    """Tell by looking whether a file is one of COCO's form."""
    try:
        with inputs_for(path).open(path) as file:
            return looks_like_coco(file.read(_LOOK_BYTES))
    except OSError:
        return False


def annotations_file(path: str) -> str:
    """Return the file that a person means: the only one of a folder, or the path itself.

    Raises:
        SourceError: The folder has none, or several.
    """
    if not inputs_for(path).is_directory(path):
        return path
    found = coco_files(path)
    if not found:
        raise SourceError(
            "no JSON file in COCO's form is in this folder, nor in annotations in it", path=path
        )
    if len(found) > 1:
        names = ", ".join(name[len(path) :].lstrip("/") for name in found)
        raise SourceError(
            f"this folder has {len(found)} files of annotations: {names}",
            path=path,
            hint="give the one that is meant as SOURCE; or, for the images in folders of their "
            "classes, --format image-folder",
        )
    return found[0]


def image_folder(path: str, names: Sequence[str]) -> str:
    """Find the folder that a file's images lie in.

    Raises:
        SourceError: They lie in none of the usual ones.
    """
    tried = list(dict.fromkeys(_candidates(path)))
    inputs = inputs_for(path)
    for folder in tried:
        if not names or any(inputs.is_file(os.path.join(folder, name)) for name in names[:5]):
            return folder
    raise SourceError(
        f"the images are not found: {names[0]!r:.200} is in none of {', '.join(tried)}",
        path=path,
        hint="put this file beside the folder of its images, or into annotations beside it",
    )


def _candidates(path: str) -> Iterator[str]:
    """Yield where the images of a file may lie: ``instances_val2017`` are in ``val2017``."""
    beside, name = split(path)
    root = beside or "."
    if is_url(path):
        above, last = split(root)
    else:
        above = os.path.normpath(os.path.join(root, os.pardir))
        last = os.path.basename(os.path.abspath(root))
    if last.lower() in _FOLDER_NAMES:
        root = above
    parts = os.path.splitext(name)[0].split("_")
    for begin in range(len(parts)):
        subset = "_".join(parts[begin:])
        for folder in (subset, subset.replace("-dev", "")):
            if folder:
                yield os.path.join(root, "images", folder)
                yield os.path.join(root, folder)
    yield os.path.join(root, "images")
    yield root
    yield beside or "."
