"""What one write makes of a source and an OUT: one dataset, or one for each split."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import EllipsisType
from typing import Any, Final

from shardwriter.dataset.indices import item_indices
from shardwriter.dataset.manifest import Manifest
from shardwriter.dataset.naming import Output, split_outputs
from shardwriter.dataset.option_types import Seed, check_value
from shardwriter.dataset.splits import Split, SplitOption, parse_split_option
from shardwriter.formats.compression import Compression
from shardwriter.schema.declared import SchemaLike, declare
from shardwriter.schema.fields import part_names
from shardwriter.sources.find import open_source
from shardwriter.sources.queue import stops_queues
from shardwriter.sources.source import Source
from shardwriter.sources.split_names import hint_of_splits
from shardwriter.sources.splits import find_splits
from shardwriter.sources.table_options import table_options
from shardwriter.writing.engine import Progress
from shardwriter.writing.keys import key_costs, key_notes
from shardwriter.writing.notices import Notices, Notify
from shardwriter.writing.options import DatasetOptions, OnError, RunOptions, changed
from shardwriter.writing.progress_bar import writing_progress
from shardwriter.writing.selection import Selection
from shardwriter.writing.split_types import check_sources
from shardwriter.writing.writing import Target, write_all

Fractions = str | Mapping[str, Any]
"""What ``split`` may be: see :func:`shardwriter.dataset.splits.parse_split_option`."""

OptionsOf = Callable[[Output, Split], DatasetOptions]
"""Returns what decides the bytes of a split."""

_GIVEN: Final = {
    *("compression", "indices", "names", "schema", "split", "table", "tfds", "vocabularies"),
}


@dataclass(frozen=True)
class Datasets:
    """What one write makes.

    Attributes:
        targets: A dataset for each split; or the only one.
        open: Opens the source: one for all of them, or one for each, and tells its notes.
    """

    targets: list[Target]
    open: Callable[[Notify], list[Source]]

    def select(self, notices: Notices) -> list[Selection]:
        """Open the source, and return the items of each dataset."""
        sources = self.open(notices.note)
        options = [target.options for target in self.targets]
        for note in key_notes(sources[0], options[0]):
            notices.note(note)
        for cost in key_costs(sources[0], options[0]):
            notices.info(cost)
        if len(sources) < len(options):
            return Selection.parts(sources[0], options)
        return [Selection(*both) for both in zip(sources, options, strict=True)]


def undivided(
    data: Any, format: str, output: Output, options: DatasetOptions, *, skip_errors: bool = False
) -> Datasets:
    """Return what a write without splits makes; ``skip_errors``: as of `open_source`."""

    def open_only(tell: Notify) -> list[Source]:
        source = open_source(data, format, options.schema, options.table, skip_errors=skip_errors)
        hint = hint_of_splits(data, source)
        for note in [*source.notes, *([] if hint is None else [hint])]:
            tell(note)
        return [source]

    return Datasets([Target(output, options)], open_only)


def split_up(
    data: Any,
    format: str,
    wanted: SplitOption,
    outputs_of: Callable[[list[str]], list[Output]],
    options_of: OptionsOf,
    seed: int = 0,
    *,
    skip_errors: bool = False,
) -> Datasets:
    """Find out what a write with splits makes.

    Args:
        data: What a person named as the source; or a mapping from names to such.
        format: What it is, or ``auto``.
        wanted: What ``--split`` says.
        outputs_of: Returns the outputs of splits, by their names.
        options_of: Returns what decides the bytes of a split.
        seed: The salt of the keys' hash.
        skip_errors: As of :func:`shardwriter.sources.find.open_source`.

    Raises:
        OptionError: The source has no such splits, or an option is wrong.
        SourceError: What is there can not be listed.
    """
    if wanted.is_by_key:
        splits = wanted.splits(seed)
        targets = _targets(splits, outputs_of, options_of)
        first = targets[0].options

        def open_one(tell: Notify) -> list[Source]:
            source = open_source(data, format, first.schema, first.table, skip_errors=skip_errors)
            for note in source.notes:
                tell(note)
            return [source]

        return Datasets(targets, open_one)
    found = find_splits(data, format, wanted.names)
    splits = wanted.splits(0, found.openers)
    targets = _targets(splits, outputs_of, options_of)
    options = targets[0].options

    def open_each(tell: Notify) -> list[Source]:
        for note in found.notes:
            tell(note)
        sources = found.open(options.schema, options.table, skip_errors=skip_errors)
        for name, source in sources.items():
            for note in source.notes:
                tell(f"{name}: {note}")
        check_sources(sources, is_mapped=options.map is not None)
        return list(sources.values())

    return Datasets(targets, open_each)


def _targets(
    splits: list[Split],
    outputs_of: Callable[[list[str]], list[Output]],
    options_of: OptionsOf,
) -> list[Target]:
    outputs = outputs_of([split.name for split in splits])
    return [
        Target(output, options_of(output, split))
        for output, split in zip(outputs, splits, strict=True)
    ]


@stops_queues
def write_splits(
    source: Any,
    out: str | os.PathLike[str],
    split: Fractions,
    *,
    split_seed: int = 0,
    num_shards: int | None = None,
    format: str = "auto",
    schema: SchemaLike | None = None,
    compression: Compression | None = None,
    tfds: str | None = None,
    workers: int | EllipsisType | None = ...,
    overwrite: bool | EllipsisType = ...,
    resume: bool | EllipsisType = ...,
    on_error: OnError | EllipsisType = ...,
    strict: bool | EllipsisType = ...,
    run: RunOptions | None = None,
    progress: Progress | bool | None = None,
    notify: Notify | None = None,
    names: Sequence[str] | str | None = None,
    indices: Any = None,
    allow_duplicates: bool = False,
    header: bool = True,
    na: Sequence[str] | str | None = None,
    encoding: str | None = None,
    columns: Sequence[str] | str | None = None,
    drop_columns: Sequence[str] | str | None = None,
    **dataset: Any,
) -> dict[str, Manifest]:
    """Write one dataset for each split: ``out/mnist@16`` is ``mnist-train``, ``mnist-val``, ...

    None of them is published before all are whole.

    Args:
        source: As of :func:`shardwriter.write`; for splits that are there already also a mapping
            from their names to such.
        out: ``dir/name@16``: N of each split for which ``split`` says none; ``dir/name`` to have
            it chosen. With ``tfds`` the ``data_dir``.
        split: ``train=0.9,val=0.1``, or a mapping from names to fractions: the hash of an item's
            key decides, so that further data moves no item. The key is the feature ``key``, so that
            items with the same value stay together; without it what the source calls an item.
            ``source`` takes the splits that the source has, ``train,val`` those two of them. N of a
            split: ``train=0.9@16,val=0.1@2``, ``train@16,val@2``.
        split_seed: Salts that hash: another one divides the items otherwise.
        num_shards: As of :func:`shardwriter.write`, and so are those that follow.
        format: What the source is, or each split of it.
        schema: Types fixed before the first item.
        compression: ``none``, ``gzip`` or ``zlib``.
        tfds: NAME:VERSION: write all splits of a TFDS dataset.
        workers: Processes that write.
        overwrite: Replace datasets of these names once all new ones are whole.
        resume: Go on with a run of the same job that was stopped.
        on_error: ``raise`` or ``skip``.
        strict: As of :func:`shardwriter.write`.
        run: How else to carry it out; changes no byte. ``max_errors`` are those of one split.
        progress: True shows a bar; or a function that is told now and then how far the split has
            come that is being written.
        notify: As for :func:`shardwriter.write`.
        names: As of :func:`shardwriter.write`.
        indices: As of :func:`shardwriter.write`; where the source has splits, of each of them.
        allow_duplicates: As of :func:`shardwriter.write`.
        header: As of :func:`shardwriter.write`, and so are those that follow.
        na: Missing values of a CSV file.
        encoding: Of CSV and JSON files.
        columns: Of a table: those that are read.
        drop_columns: Of a table: those that are not.
        **dataset: The other options of :func:`shardwriter.write` that decide bytes: ``map``,
            ``filter``, ``limit``, ``shuffle_seed``, ``key``, ``label``, ...

    Returns:
        The manifests, by split.

    Raises:
        UsageError: An option is wrong, or an output exists.
        DataError: The input is at fault; nothing is published.
        RunError: The work could not be done; nothing is published, unless it is what the
            publication of all splits has stopped at.
    """
    wrong = dataset.keys() - (DatasetOptions.__dataclass_fields__.keys() - _GIVEN)
    if wrong:
        raise TypeError(f"write_splits() has no parameter {min(wrong)!r}")
    check_value("split_seed", split_seed, Seed)
    wanted = parse_split_option(split)
    declared = declare(schema)
    run_options = changed(
        run,
        workers=workers,
        overwrite=overwrite,
        resume=resume,
        on_error=on_error,
        strict=strict,
    )

    told = part_names(names)
    table = table_options(
        header=header,
        names=told,
        na=na,
        encoding=encoding,
        columns=columns,
        drop_columns=drop_columns,
    )
    chosen = None if indices is None else item_indices(indices, allow_duplicates=allow_duplicates)

    def options_of(output: Output, part: Split) -> DatasetOptions:
        return DatasetOptions(
            **dataset,
            schema=declared.types,
            vocabularies=declared.vocabularies,
            compression=output.compression,
            tfds=output.tfds,
            split=part,
            names=told if header else None,
            indices=chosen,
            table=table,
        )

    outputs_of = partial(split_outputs, out, wanted.num_shards, num_shards, compression, tfds=tfds)
    found = split_up(
        source,
        format,
        wanted,
        outputs_of,
        options_of,
        split_seed,
        skip_errors=run_options.on_error == "skip",
    )
    with writing_progress(progress) as report:
        manifests = write_all(found.targets, found.select, run_options, report, Notices(notify))
    return {
        target.split or "": manifest
        for target, manifest in zip(found.targets, manifests, strict=True)
    }
