"""Files in class folders: one folder per class, with files of a kind in it; or without classes.

Classes are the folder names in sorted order, with labels from 0. A folder with such files and
without class folders gives the same features without the class.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from shardwriter.errors import SourceError
from shardwriter.schema import FeatureType
from shardwriter.sources.input_files import (
    LOOK_FILES,
    ListedFile,
    damaged_file,
    hash_lines,
    is_wanted,
    left_out,
    listed_file,
    read_file,
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

_INT: Final = FeatureType("int64", "int64", ())
_STRING: Final = FeatureType("bytes", "string", ())


class FileKind(NamedTuple):
    """A kind of files.

    Attributes:
        one: The singular, ``image``.
        many: The plural, ``images``.
        files: The plural as files, ``image files``.
        endings: The endings of their names, in lower case with the dot.
    """

    one: str
    many: str
    files: str
    endings: frozenset[str]


class FileItem(NamedTuple):
    """A file when its folder was listed."""

    key: str
    label: int  # -1 without a class
    size_bytes: int
    mtime_ns: int


class _FileItems:
    """Items in columns: a fifth of the memory of a million tuples, and quick to send."""

    def __init__(self) -> None:
        self._keys: list[str] = []
        self._facts = array("q")  # label, size and time of each file

    def extend(self, items: Iterable[FileItem]) -> None:
        for key, *facts in items:
            self._keys.append(key)
            self._facts.extend(facts)

    def relabel(self, labels: Sequence[int]) -> None:
        """Give class k the label ``labels[k]``."""
        for place in range(0, len(self._facts), 3):
            self._facts[place] = labels[self._facts[place]]

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> FileItem:
        # Not for negative indices, whose slices would differ.
        return FileItem(self._keys[index], *self._facts[3 * index : 3 * index + 3])

    def __iter__(self) -> Iterator[FileItem]:
        return map(self.__getitem__, range(len(self._keys)))


class ClassFolders:
    """Files in class folders; subclasses return the features of a file.

    Args:
        root: The folder.
        files: The kind of files.
        plan: The features of a file, without the class.
        prefix: The prefix of feature names, ``image``: the class is in ``image/class/label`` and
            ``image/class/text``.
        skip_errors: Keep a file whose name is not UTF-8 as an item, which raises when it is loaded;
            otherwise raise here.

    Attributes:
        classes: The class names; empty without classes.

    Raises:
        SourceError: There are no such files, or there are some in class folders and beside them.
    """

    kind: str
    random_access = True
    sendable = True
    resumable = True

    def __init__(
        self,
        root: str,
        files: FileKind,
        plan: Mapping[str, FeatureType],
        prefix: str,
        *,
        skip_errors: bool = False,
    ) -> None:
        self._root = root
        self._folder = absolute(root)  # a map may change the current folder
        self._inputs = inputs_for(root)
        skipped: Counter[str] = Counter()
        tree = tree_of(root)
        folders, loose_files = _list_root(tree, root, files.endings, skipped)
        listed = partial(_item, skip_errors=skip_errors)
        loose = [listed(entry, entry.name, -1) for entry in loose_files]
        self._items = _FileItems()
        self.classes: list[str] = []
        self._is_given_classes = False
        empty: list[str] = []
        for folder in folders:
            before = len(self._items)
            label = len(self.classes)
            found = walk(tree, root, folder, files.endings, skipped)
            self._items.extend(listed(entry, key, label) for entry, key in found)
            if len(self._items) > before:
                self.classes.append(printable(folder))
            else:
                empty.append(folder)
        if len(self._items) and loose:
            raise SourceError(
                f"{len(loose)} {files.one}(s) are beside the class folders, such as "
                f"{loose[0].key!r}",
                path=root,
                hint="move them into a class folder, or to another folder",
            )
        if loose:
            self._items.extend(loose)
        if not len(self._items):
            others = ", ".join(f"{count:,} {end}" for end, count in skipped.most_common(5))
            raise SourceError(
                f"this folder has no {files.files}" + (f", but {others}" if others else ""),
                path=root,
                hint=f"{files.many} need an ending of {', '.join(sorted(files.endings))}; put them "
                "into one folder for each class",
            )
        self.num_items: int | None = len(self._items)
        self.plan: Mapping[str, FeatureType] = dict(plan)
        self.vocabularies: Mapping[str, list[str]] = {}
        self.label: str | None = None
        self._class_names = f"{prefix}/class/label", f"{prefix}/class/text"
        if self.classes:
            self.label, text = self._class_names
            self.plan = {**plan, self.label: _INT, text: _STRING}
            self.vocabularies = {self.label: self.classes}
        notes = left_out(skipped, files.many)
        if empty and self.classes:
            more = ", ..." if len(empty) > 5 else ""
            names = ", ".join(map(printable, empty[:5]))
            notes.append(f"folders without {files.many} are not classes: {names}{more}")
        self.notes: Sequence[str] = notes

    def use_classes(self, classes: Sequence[str]) -> None:
        """Renumber the classes, if other splits of the data have more of them."""
        if [*classes] == self.classes:
            return
        assert self.label is not None
        self._items.relabel([classes.index(name) for name in self.classes])
        self.classes = [*classes]
        self._is_given_classes = True
        self.vocabularies = {self.label: self.classes}

    def features_of(self, item: FileItem, data: bytes) -> dict[str, Any]:
        """Return the features of a file, without the class.

        Raises:
            ValueError: It is not a file of this kind, or is damaged.
        """
        raise NotImplementedError

    def items(self) -> Iterator[FileItem]:
        """Yield every file: classes in sorted order, and files of a class in sorted order."""
        return iter(self._items)

    def item(self, item_index: int) -> FileItem:
        """Return one file."""
        return self._items[item_index]

    def key(self, item: FileItem) -> str:
        """Return the path relative to the root, with ``/``."""
        return printable(item.key)

    def size_bytes(self, item: FileItem) -> int:
        """Return the size of the file."""
        return item.size_bytes

    def load(self, item: FileItem) -> dict[str, Any]:
        """Return the features of a file.

        Raises:
            SourceError: It cannot be read, or its content does not match its name.
            SourceChanged: It has changed since it was listed.
        """
        listed = ListedFile(item.key, item.size_bytes, item.mtime_ns)
        data = read_file(self._inputs, self._folder, listed, self._root)
        try:
            features = self.features_of(item, data)
        except ValueError as error:
            raise damaged_file(error, os.path.join(self._root, item.key)) from None
        if item.label >= 0:
            label, text = self._class_names
            features[label] = item.label
            features[text] = self.classes[item.label]
        return features

    def digest(self) -> dict[str, Any]:
        """Return a hash of the files' relative paths and sizes."""
        return self._hash(lambda item: f"{item.key}\0{item.size_bytes}\n")

    def fingerprint(self) -> dict[str, Any]:
        """Return a hash of paths, sizes and modification times."""
        return self._hash(lambda item: f"{item.key}\0{item.size_bytes}\0{item.mtime_ns}\n")

    def _hash(self, line: Callable[[FileItem], str]) -> dict[str, Any]:
        # Without classes of other splits, the hash is that of versions before there were splits.
        classes = {"classes": self.classes} if self._is_given_classes else {}
        files = hash_lines(map(line, self._items))
        return {**classes, "files": files, "num_items": self.num_items}


def has_files(root: str, endings: frozenset[str]) -> bool:
    """Return whether there is such a file in the folder or below it, readable or not."""
    try:
        tree = tree_of(root, LOOK_FILES)
        return _holds(tree, root, endings) or (
            not tree.is_whole and _holds(tree_of(root), root, endings)
        )
    except SourceError:
        return True  # opening the folder raises the reason


def _holds(tree: Tree, root: str, endings: frozenset[str]) -> bool:
    folders, loose = _list_root(tree, root, endings, Counter())
    return bool(loose) or any(
        next(walk(tree, root, folder, endings, Counter()), None) is not None for folder in folders
    )


def _list_root(
    tree: Tree, root: str, endings: frozenset[str], skipped: Counter[str]
) -> tuple[list[str], list[Entry]]:
    folders: list[str] = []
    loose: list[Entry] = []
    for entry in scan(tree, root):
        if entry.is_dir():
            folders.append(entry.name)
        elif is_wanted(entry.name, endings, skipped):
            loose.append(entry)
    return folders, loose


def _item(entry: Entry, key: str, label: int, *, skip_errors: bool) -> FileItem:
    listed = listed_file(entry, key, skip_errors=skip_errors)
    return FileItem(key, label, listed.size_bytes, listed.mtime_ns)
