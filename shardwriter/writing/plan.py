"""Planning a write: refuse early what can not work, choose N, report what would be written.

A sample of at most 64 items is encoded for the size of records and their features; it decides the
number of shards for ``@auto``, and is the report of ``--dry-run``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

from shardwriter.dataset import Output, TfdsSplit, auto_num_shards
from shardwriter.errors import OptionError
from shardwriter.formats import FRAME_BYTES, Packing, feature_spelling, list_spelling
from shardwriter.schema import FeatureSummary
from shardwriter.sources import RecordSource, Source
from shardwriter.storage import LocalStorage
from shardwriter.writing.encode import ItemEncoder
from shardwriter.writing.images import check_images
from shardwriter.writing.job import check_compression
from shardwriter.writing.options import DatasetOptions, RunOptions
from shardwriter.writing.publication import existing_files
from shardwriter.writing.selection import Selection
from shardwriter.writing.tfds import check_folder, check_planned, tfds_feature

_SAMPLE_ITEMS: Final = 64


@dataclass(frozen=True)
class Sample:
    """The size and the features of the records of some items, spread over the source."""

    num_records: int
    mean_frame_bytes: float
    features: dict[str, Any]


def sample_records(selection: Selection, *, skip_errors: bool = False) -> Sample:
    """Return a sample of up to 64 items at floor(k * T / 64); of a stream the first 64.

    Args:
        selection: The items.
        skip_errors: Whether items that give an error are left out.

    Raises:
        DataError: A sampled item can not be encoded.
    """
    num_items = selection.num_items
    if num_items is not None and selection.random_access:
        chosen = {k * num_items // _SAMPLE_ITEMS for k in range(_SAMPLE_ITEMS if num_items else 0)}
        items = selection.items_at(np.array(sorted(chosen), np.int64))
    else:
        items = enumerate(islice(selection.items(), _SAMPLE_ITEMS))
    encoder = ItemEncoder(selection.source, selection.options, 1, skip_errors=skip_errors)
    results = (result for _, result in encoder.records(items))
    sizes = [len(result) + FRAME_BYTES for result in results if isinstance(result, bytes)]
    mean = sum(sizes) / len(sizes) if sizes else 0.0
    schema = encoder.encoder.schema.to_json()
    lists = {list_spelling(n): entry for n, entry in schema.get("feature_lists", {}).items()}
    if lists:
        schema["features"] = {feature_spelling(n): e for n, e in schema["features"].items()}
    return Sample(len(sizes), mean, {**schema["features"], **lists})


def choose_num_shards(selection: Selection, output: Output, *, skip_errors: bool = False) -> int:
    """Return N: the number in OUT, or for ``@auto`` one that suits the data.

    Shards then have at most 200 MB. If there are enough items, N is a multiple of
    ``world * loader_workers``, so that every reader has the same number of shards.

    Raises:
        OptionError: ``@auto`` for a source of unknown length.
    """
    if output.num_shards is not None:
        return output.num_shards
    num_items = selection.num_items
    if num_items is None:
        raise OptionError(
            "the number of items is not known before the end, so N can not be chosen",
            hint=f"give it: {output.name}@16, or --shards 16",
        )
    total_bytes = sample_records(selection, skip_errors=skip_errors).mean_frame_bytes * num_items
    readers = selection.options.world * selection.options.loader_workers
    return auto_num_shards(num_items, total_bytes, readers)


def plan(
    source: Source,
    output: Output,
    options: DatasetOptions,
    run_options: RunOptions | None = None,
) -> dict[str, Any]:
    """Return what a write would write, as JSON, from a sample of the items; writes nothing.

    Raises:
        UsageError: The write would be refused.
        DataError: A sampled item can not be encoded.
    """
    check_compression(output, options, run_options or RunOptions())
    return plan_selection(Selection(source, options), output, run_options)


def plan_selection(
    selection: Selection,
    output: Output,
    run_options: RunOptions | None = None,
    beside: Sequence[Output] = (),
) -> dict[str, Any]:
    """Return the same for items that are selected already; ``beside``: see :func:`check_source`.

    Raises:
        UsageError: The write would be refused.
        DataError: A sampled item can not be encoded.
    """
    source, options = selection.source, selection.options
    check_compression(output, options, run_options or RunOptions())
    tfds = {}
    if output.tfds is not None:
        check_folder(LocalStorage(), output.directory, output.tfds)
        tfds = {"tfds": {**output.tfds.to_json(), "directory": output.directory}}
    check_source(source, options, output, beside)
    num_items = selection.num_items
    skip_errors = run_options is not None and run_options.on_error == "skip"
    n = choose_num_shards(selection, output, skip_errors=skip_errors)
    records = sample_records(selection, skip_errors=skip_errors)
    taken = existing_files(LocalStorage().list(output.directory), output.name, output.pattern(n))
    return {
        "compression": Packing.of(options.compression, options.deflate, n).to_json(),
        "estimated_bytes": (
            None if num_items is None else round(records.mean_frame_bytes * num_items)
        ),
        "features": records.features,
        "files": output.pattern(n).template,
        "format": source.kind,
        "num_items": num_items,
        "num_shards": n,
        "replaces": taken,
        "sampled_items": records.num_records,
        "schema": "shardwriter.plan/1",
        **tfds,
    }


def check_source(
    source: Source, options: DatasetOptions, output: Output, beside: Sequence[Output] = ()
) -> None:
    """Refuse a source that does not fit the options or the output, before anything is written.

    Args:
        source: The items.
        options: The options that decide the bytes.
        output: The dataset to write.
        beside: The outputs of other splits of the same write.

    Raises:
        OptionError: An option, a type or the output can not be used with this source.
    """
    if isinstance(source, RecordSource):
        _check_copy(source, options, output)
    if options.names is not None and source.kind != "python":
        raise OptionError(
            f"--names: the parts of items of a source of kind {source.kind} have names already",
            hint="leave --names off; a map can rename features",
        )
    plan = {} if options.map else source.plan
    if options.label and plan and options.label not in plan:
        raise OptionError(
            f"--label {options.label}: there is no such feature",
            hint=f"the features are {', '.join(sorted(plan))}",
        )
    for name, wanted in options.schema.items():
        planned = plan.get(name)
        if planned is not None and wanted.encoding == "raw":
            continue  # raw bytes of the source's numbers
        if planned is not None and planned.kind not in (None, wanted.kind):
            raise OptionError(
                f"the schema has {wanted.kind} for {name!r}, but the source of kind {source.kind} "
                f"gives {planned.kind}",
                hint="correct the schema, or convert the values in a map",
            )
    for name, words in options.vocabularies.items():
        known = None if options.map else source.vocabularies.get(name)
        if known is not None and words[: len(known)] != known:
            raise OptionError(
                f"the schema's classes of {name!r} are {_first_words(words)}, and this source has "
                f"{_first_words(known)}",
                hint="a number would mean another class; a map can convert to the schema's numbers",
            )
    if options.images is not None:
        check_images(source, options)
    if output.tfds is not None:
        splits = [other.tfds.split for other in beside if other.tfds is not None]
        _check_tfds(source, options, output.directory, output.tfds, splits)


def _first_words(words: list[str]) -> str:
    return ", ".join(words[:8]) + ", ..." * (len(words) > 8)


def _check_tfds(
    source: Source,
    options: DatasetOptions,
    directory: str,
    split: TfdsSplit,
    beside: Sequence[str],
) -> None:
    is_copied = isinstance(source, RecordSource) and options.map is None
    if is_copied and isinstance(source, RecordSource) and not source.summaries:
        raise OptionError(
            "--tfds: finished records are copied, not decoded, and their features are unknown",
            hint="add a map, which decodes them; one that returns its argument is enough",
        )
    found = {}
    if options.map is None:
        for name, planned in source.plan.items():
            words = source.vocabularies.get(name)
            summary = FeatureSummary(planned, present=1, vocabulary=words)
            feature, _ = tfds_feature(name, summary, 1, {})
            # An integer may be a label, which depends on its values.
            may_be_label = planned.kind == "int64" and planned.shape == () and words is None
            if not may_be_label:
                found[name] = feature
    check_planned(LocalStorage(), directory, split, found, beside)


def _check_copy(source: RecordSource, options: DatasetOptions, output: Output) -> None:
    if source.reads(output.directory, output.name):
        raise OptionError(
            f"the output {output.name!r} is the dataset that is read",
            hint="choose another name or folder for the output",
        )
    for option, value in (("--label", options.label), ("--schema", options.schema)):
        if value and options.map is None:
            raise OptionError(
                f"{option}: finished records are copied, not decoded",
                hint="add a map, which decodes them; one that returns its argument is enough",
            )
