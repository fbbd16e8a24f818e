"""Splits of a source: from a mapping, or from the names of folders, lists and files.

::

    mapping                    {"train": ..., "val": ...}, a DatasetDict, module:callable of one
    save_to_disk               the splits of a DatasetDict, from its dataset_dict.json
    voc                        ImageSets/Main/train.txt, val.txt, ...
    coco                       instances_train2017.json, instances_val2017.json, ...
    image-mask                 train and trainannot, train/images and train/masks, images/train ...
    folders                    train, val, test, ...: each in any format
    files                      train-00000.parquet, validation.csv, mnist-test@4, ...

Classes have the same numbers in all splits, even if a split lacks some of them.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from shardwriter.dataset import Split, check_split_name
from shardwriter.errors import CallableError, OptionError, ShardwriterError, SourceError, reason
from shardwriter.schema import FeatureType
from shardwriter.sources import coco as coco_source
from shardwriter.sources import huggingface as huggingface_source
from shardwriter.sources import image_mask as image_mask_source
from shardwriter.sources import tfrecord as tfrecord_source
from shardwriter.sources import voc as voc_source
from shardwriter.sources.callables import import_reference, is_reference
from shardwriter.sources.coco import coco_files, is_coco_file
from shardwriter.sources.find import format_of_file, open_files, open_source
from shardwriter.sources.image_mask import find_sides
from shardwriter.sources.input_files import tree_of
from shardwriter.sources.python import PythonSource
from shardwriter.sources.shard_sets import find_shard_sets
from shardwriter.sources.source import ClassSource, Source
from shardwriter.sources.tables import TableOptions
from shardwriter.storage import inputs_for
from shardwriter.storage import split as split_path

WORDS: Final = (
    *("train", "training", "trainval", "val", "valid", "validation", "minival", "eval", "dev"),
    *("test", "testing"),
)
"""Usual names of splits, in the order in which they are shown."""


def split_of_name(name: str, words: Collection[str]) -> str | None:
    """Return the split in the name of a file or folder; None if there is none, or several.

    ``train2017`` is a split; ``mnist-train-00000-of-00004.tfrecord`` belongs to ``train``.
    """
    parts = [part for part in re.split(r"[-_. ]", name) if part]
    found = [p for p in parts if p in words or re.sub(r"[0-9]{4}$", "", p).lower() in words]
    if name in words or not found:
        return name if name in words else None
    if parts[0] in found:
        return parts[0]
    return found[0] if len({*found}) == 1 else None


def in_order(names: Sequence[str]) -> list[str]:
    """Return split names in the usual order: train, val, test."""

    def rank(name: str) -> tuple[int, str]:
        word = re.sub(r"[0-9]{4}$", "", name).lower()
        return (WORDS.index(word) if word in WORDS else len(WORDS), name)

    return sorted(names, key=rank)


def splits_hint(data: Any, source: Source) -> str | None:
    """Return a hint that a source seems to have splits; None if it does not."""
    words = {*WORDS}
    if isinstance(source, ClassSource):
        classes = source.classes
        if len(classes) > 1 and all(split_of_name(name, words) == name for name in classes):
            return (
                f"the classes are named {', '.join(classes)}: --split source writes a dataset for "
                "each of them"
            )
        return None
    if not isinstance(data, (str, os.PathLike)) or not os.path.isdir(data):
        return None  # not worth a request for a URL
    try:
        listed = inputs_for(os.fspath(data)).listing(os.fspath(data))
    except OSError:
        return None
    found = sorted({split_of_name(e.name, words) or "" for e in listed if e.is_file()} - {""})
    if len(found) < 2:
        return None
    return f"files are named {', '.join(found)}: --split source writes a dataset for each of them"


_HINT: Final = (
    "searched for a mapping from names to data; a saved DatasetDict; folders named train, val, "
    "test, ...; files with such names, as train-*.parquet; VOC's ImageSets/Main; COCO's "
    "instances_*.json. --split train=0.9,val=0.1 divides the items"
)
_DEFAULT_KIND: Final = "instances"  # of COCO's several kinds of annotations for an image

Schema = Mapping[str, FeatureType]
_Open = Callable[..., Source]
"""Opens a split with (schema, table, *, skip_errors), as of `open_source`."""


@dataclass(frozen=True)
class SourceSplits:
    """The splits of a source.

    Attributes:
        openers: A function that opens the split, by split.
        notes: Remarks for the user, one line each.
    """

    openers: Mapping[str, _Open]
    notes: Sequence[str] = field(default=())

    def open(
        self, schema: Schema, table: TableOptions | None = None, *, skip_errors: bool = False
    ) -> dict[str, Source]:
        """Open all splits, and number their classes alike.

        Args:
            schema: As of :func:`shardwriter.sources.find.open_source`.
            table: Likewise.
            skip_errors: Likewise.

        Raises:
            SourceError: A split cannot be opened.
        """
        sources = {}
        for name, opener in self.openers.items():
            try:
                sources[name] = opener(schema, table, skip_errors=skip_errors)
            except SourceError as error:
                error.message = f"split {name!r}: {error.message}"
                raise
        with_classes = [
            source
            for source in sources.values()
            if isinstance(source, ClassSource) and source.classes
        ]
        classes = sorted({name for source in with_classes for name in source.classes})
        for source in with_classes:
            source.use_classes(classes)
        _check_coco_classes(sources)
        return sources


def find_splits(data: Any, format: str = "auto", names: Sequence[str] = ()) -> SourceSplits:
    """Find the splits that a source has.

    Args:
        data: A source as of :func:`shardwriter.sources.find.open_source`, or a mapping from split
            names to sources.
        format: The format of each split, or ``auto``.
        names: The splits to return, in order; empty for all.

    Raises:
        OptionError: The source has no splits, or none of such a name.
        SourceError: The source cannot be listed, or several files match a split.
    """
    if isinstance(data, os.PathLike):
        data = os.fspath(data)
    notes: list[str] = []
    if isinstance(data, str):
        found = _splits_of_path(data, format, frozenset(names), notes)
        shown = repr(data)
    else:
        found = _splits_of_mapping(data, partial(_value_opener, format, None))
        shown = f"a {type(data).__name__}"
    if not found:
        raise OptionError(f"{shown} has no splits of its own", hint=_HINT)
    missing = [name for name in names if name not in found]
    if missing:
        raise OptionError(
            f"{shown} has no split {missing[0]!r}",
            hint=f"its splits are {', '.join(found)}",
        )
    for name in found:
        check_split_name(name)
    chosen = names or list(found)
    if not names and "trainval" in found and {"train", "val"} & found.keys():
        chosen = [name for name in chosen if name != "trainval"]
        notes.append("trainval is the union of train and val, and is left out")
    return SourceSplits({name: found[name] for name in chosen}, notes)


def open_as_split(
    data: Any,
    format: str,
    schema: Schema,
    split: Split | None,
    table: TableOptions | None = None,
) -> Source:
    """Open the source that a dataset was written from: one of the splits of a source, if it is one.

    Args:
        data: The source of the write, or of this split alone.
        format: Its format, or ``auto``.
        schema: Types fixed by the user.
        split: The split; None for a dataset without splits.
        table: How a table is read.

    Raises:
        SourceError: As of :func:`shardwriter.sources.find.open_source`.
        OptionError: Likewise.
    """
    if split is None or split.is_by_key:
        return open_source(data, format, schema, table, skip_errors=True)
    with suppress(OptionError):  # the source has no splits
        found = find_splits(data, format)
        if split.name in found.openers:
            return found.open(schema, table, skip_errors=True)[split.name]
    return open_source(data, format, schema, table, skip_errors=True)


def _check_coco_classes(sources: Mapping[str, Source]) -> None:
    """Raise if annotation files have different names for a category number."""
    known: dict[int, tuple[str, str]] = {}
    for split_name, source in sources.items():
        if not isinstance(source, coco_source.CocoDetection):
            continue
        for number, name in source.class_names.items():
            first, before = known.setdefault(number, (split_name, name))
            if name != before:
                raise SourceError(
                    f"category {number} is {before!r} in split {first!r}, but {name!r} in split "
                    f"{split_name!r}",
                    hint="number the categories alike in all files",
                )


# -- mappings --------------------------------------------------------------------------------------


def _splits_of_mapping(data: Any, opened: Callable[[str, Any], _Open]) -> dict[str, _Open]:
    if not isinstance(data, Mapping):
        return {}
    for name in data:
        if not isinstance(name, str):
            raise OptionError(f"the name of a split is {name!r}; it must be text")
    return {name: opened(name, value) for name, value in data.items()}


def _value_opener(format: str, reference: str | None, _name: str, value: Any) -> _Open:
    def opened(
        schema: Schema, table: TableOptions | None = None, *, skip_errors: bool = False
    ) -> Source:
        if reference is not None and (isinstance(value, (list, tuple)) or callable(value)):
            return PythonSource(value, name=reference)
        return open_source(value, format, schema, table, skip_errors=skip_errors)

    return opened


# -- paths -----------------------------------------------------------------------------------------


def _splits_of_path(
    data: str, format: str, wanted: frozenset[str], notes: list[str]
) -> dict[str, _Open]:
    inputs = inputs_for(data)
    if not inputs.exists(data):
        if is_reference(data):
            value = import_reference(data, "SOURCE")
            if callable(value) and not isinstance(value, Mapping):
                value = _call(value, data)
            return _splits_of_mapping(value, partial(_value_opener, "auto", data))
        if glob.has_magic(data):
            paths = sorted(filter(inputs.is_file, inputs.glob(data)))
            annotated = [p for p in paths if p.lower().endswith(".json") and is_coco_file(p)]
            if annotated and format in ("auto", coco_source.KIND):
                return _splits_of_coco(data, annotated, {*WORDS, *wanted}, notes)
            return _splits_of_files(paths, format, wanted, notes)
        raise OptionError("there is no such file or folder", path=data)
    if not inputs.is_directory(data):
        return {}
    is_auto = format == "auto"
    if is_auto or format == huggingface_source.KIND:
        saved = huggingface_source.saved_splits(data)
        if saved is not None:
            kind = huggingface_source.KIND
            return {name: partial(open_source, os.path.join(data, name), kind) for name in saved}
    if format == voc_source.KIND or (is_auto and voc_source.is_voc_folder(data)):
        return _splits_of_voc(data, wanted)
    if format == coco_source.KIND or is_auto:
        annotated = coco_files(data)
        if annotated:
            return _splits_of_coco(data, annotated, {*WORDS, *wanted}, notes)
    if format == image_mask_source.KIND or (is_auto and image_mask_source.has_pairs(data)):
        return _splits_of_pairs(data, wanted)
    entries = sorted(inputs.listing(data), key=lambda entry: entry.name)
    folders = [entry.name for entry in entries if entry.is_dir() and entry.name[:1] != "."]
    named = [name for name in folders if split_of_name(name, {*WORDS, *wanted}) == name]
    if named:
        others = [name for name in folders if name not in named]
        if others:
            notes.append(f"folders that are not splits are left out: {', '.join(others[:5])}")
        return {
            name: partial(open_source, os.path.join(data, name), format) for name in in_order(named)
        }
    paths = [entry.path for entry in entries if entry.is_file()]
    found = _splits_of_files(paths, format, wanted, notes)
    if not found and "data" in folders:  # as in repositories of the Hugging Face hub
        return _splits_of_path(os.path.join(data, "data"), format, wanted, notes)
    return found


def _call(function: Callable[[], Any], name: str) -> Any:
    try:
        return function()
    except ShardwriterError:
        raise
    except (Exception, SystemExit) as error:
        raise CallableError(
            f"the source raised {type(error).__name__}: {reason(error)}",
            item=name,
            hint="the traceback is shown with -v",
        ) from error


def _splits_of_voc(folder: str, wanted: Collection[str]) -> dict[str, _Open]:
    inputs = inputs_for(folder)
    lists = os.path.join(folder, "ImageSets", "Main")
    if not inputs.is_directory(lists):
        return {}
    words = {*WORDS, *wanted}
    stems = {os.path.splitext(e.name) for e in inputs.listing(lists) if e.is_file()}
    names = [stem for stem, ending in stems if ending == ".txt" and stem in words]
    return {
        name: partial(open_source, os.path.join(lists, f"{name}.txt"), voc_source.KIND)
        for name in in_order(names)
    }


def _splits_of_coco(
    shown: str, paths: Sequence[str], words: Collection[str], notes: list[str]
) -> dict[str, _Open]:
    by_kind: dict[str, dict[str, str]] = {}
    for path in paths:
        parts = os.path.splitext(split_path(path)[1])[0].split("_")
        at = next((i for i, part in enumerate(parts) if split_of_name(part, words)), len(parts) - 1)
        kind, name = "_".join(parts[:at]), "_".join(parts[at:])
        by_kind.setdefault(kind, {})[name] = path
    kinds = sorted(by_kind)
    if len(kinds) > 1 and _DEFAULT_KIND not in by_kind:
        raise SourceError(
            f"there are annotations of several kinds: {', '.join(kinds)}",
            path=shown,
            hint=f"choose one: '{os.path.dirname(paths[0])}/{kinds[0]}_*.json'",
        )
    chosen = kinds[0] if len(kinds) == 1 else _DEFAULT_KIND
    if len(kinds) > 1:
        others = [kind for kind in kinds if kind != chosen]
        notes.append(
            f"reading annotations of kind {chosen}; {', '.join(others)} left out: for others give "
            f"'{os.path.dirname(paths[0])}/{others[0]}_*.json'"
        )
    found = by_kind[chosen]
    return {
        name: partial(open_source, found[name], coco_source.KIND) for name in in_order(list(found))
    }


def _splits_of_pairs(folder: str, wanted: Collection[str]) -> dict[str, _Open]:
    tree = tree_of(folder)
    words = {*WORDS, *wanted}
    specs: dict[str, str] = {}
    for sides in find_sides(tree, folder):
        images, masks = (side.folder for side in sides)
        part = images.partition("/")[0]
        if part in words:
            specs[part] = f"{{{images},{masks}}}"
            continue
        both = [
            {entry.name for entry in tree.scan(os.path.join(folder, side)) if entry.is_dir()}
            for side in (images, masks)
        ]
        for name in both[0] & both[1] & words:
            specs[name] = f"{{{images}/{name},{masks}/{name}}}"
    return {
        name: partial(open_source, os.path.join(folder, specs[name]), image_mask_source.KIND)
        for name in in_order(list(specs))
    }


def _splits_of_files(
    paths: Sequence[str], format: str, wanted: Collection[str], notes: list[str]
) -> dict[str, _Open]:
    words = {*WORDS, *wanted}
    groups: dict[str, dict[str, list[str]]] = {}
    others = []
    for path in paths:
        kind = format_of_file(path)
        if kind is None or format not in ("auto", kind):
            continue
        name = split_of_name(os.path.basename(path), words)
        if name is None:
            others.append(os.path.basename(path))
        else:
            groups.setdefault(name, {}).setdefault(kind, []).append(path)
    found: dict[str, _Open] = {}
    for name in in_order(list(groups)):
        kinds = groups[name]
        if len(kinds) > 1:
            raise SourceError(
                f"split {name!r} has files of several formats: {', '.join(sorted(kinds))}",
                hint=f"choose one: --format {' or '.join(sorted(kinds))}",
            )
        ((kind, files),) = kinds.items()
        if kind == tfrecord_source.KIND:
            found[name] = partial(_open_records, files)
        else:
            found[name] = partial(open_files, kind, files)
    if found and others:
        more = ", ..." if len(others) > 5 else ""
        notes.append(
            f"files without a split in their names are left out: {', '.join(others[:5])}{more}"
        )
    return found


def _open_records(
    paths: Sequence[str], _schema: Schema, table: TableOptions | None, *, skip_errors: bool
) -> Source:
    if table is not None:
        table.check_format(tfrecord_source.KIND)
    sets = find_shard_sets(list(paths))
    if len(sets) > 1:
        names = ", ".join(shard_set.name for shard_set in sets)
        raise SourceError(f"there are {len(sets)} datasets ({names})", path=paths[0])
    pattern = sets[0].pattern
    if pattern is None:
        return tfrecord_source.TFRecordFiles(paths[0])
    return tfrecord_source.TFRecordFiles(
        os.path.join(sets[0].directory, f"{sets[0].name}@{pattern.num_shards}")
    )
