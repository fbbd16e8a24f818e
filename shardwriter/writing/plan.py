"""Plan: refusing early what can not work, and saying what a write would make."""

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

# A few items as records, and what they say of all: sizes, features, a good number of shards.

_SAMPLE_ITEMS: Final = 64


@dataclass(frozen=True)
class Sample:
    """What a few items, spread over the source, look like as records."""

    num_records: int
    mean_frame_bytes: float
    features: dict[str, Any]


def sample_records(selection: Selection, *, skip_errors: bool = False) -> Sample:
    """Encode up to 64 items at floor(k * T / 64); of a stream the first 64.

    Args:
        selection: The items.
        skip_errors: Whether those that give an error are left out.

    Raises:
        DataError: As a write of these items would.
    """
    num_items = selection.num_items
    if num_items is not None and selection.random_access:
        chosen = {k * num_items // _SAMPLE_ITEMS for k in range(_SAMPLE_ITEMS if num_items else 0)}
        items = selection.items_at(np.array(sorted(chosen), np.int64))
    else:
        items = enumerate(islice(selection.items(), _SAMPLE_ITEMS))
    encoder = ItemEncoder(selection.source, selection.options, 1, skip_errors=skip_errors)
    made = (record for _, record in encoder.records(items))
    sizes = [len(record) + FRAME_BYTES for record in made if isinstance(record, bytes)]
    mean = sum(sizes) / len(sizes) if sizes else 0.0
    schema = encoder.encoder.schema.to_json()
    lists = {list_spelling(n): entry for n, entry in schema.get("feature_lists", {}).items()}
    if lists:
        schema["features"] = {feature_spelling(n): e for n, e in schema["features"].items()}
    return Sample(len(sizes), mean, {**schema["features"], **lists})


def choose_num_shards(selection: Selection, output: Output, *, skip_errors: bool = False) -> int:
    """Return N: what OUT says, or for ``@auto`` a good number for this data.

    Shards of at most 200 MB, and a multiple of ``world * loader_workers`` so that every reader has
    the same number of them, where there are enough items.

    Raises:
        OptionError: ``@auto`` for a source that does not know its length.
    """
    if output.num_shards is not None:
        return output.num_shards
    num_items = selection.num_items
    if num_items is None:
        raise OptionError(
            "the number of items is not known before the end, so N can not be chosen",
            hint=f"say it: {output.name}@16, or --shards 16",
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
    """Say what a write would make, from a sample of the items; writes nothing.

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
    """Say the same of items that are selected already; ``beside``: see :func:`check_source`.

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
    seen = sample_records(selection, skip_errors=skip_errors)
    taken = existing_files(LocalStorage().list(output.directory), output.name, output.pattern(n))
    return {
        "compression": Packing.of(options.compression, options.deflate, n).to_json(),
        "estimated_bytes": None if num_items is None else round(seen.mean_frame_bytes * num_items),
        "features": seen.features,
        "files": output.pattern(n).template,
        "format": source.kind,
        "num_items": num_items,
        "num_shards": n,
        "replaces": taken,
        "sampled_items": seen.num_records,
        "schema": "shardwriter.plan/1",
        **tfds,
    }


def check_source(
    source: Source, options: DatasetOptions, output: Output, beside: Sequence[Output] = ()
) -> None:
    """Refuse early what can not work.

    Args:
        source: The items.
        options: What decides the bytes.
        output: Where they go.
        beside: The outputs of other splits of the same write.

    Raises:
        OptionError: Says what.
    """
    if isinstance(source, RecordSource):
        _check_copy(source, options, output)
    if options.names is not None and source.kind != "python":
        raise OptionError(
            f"--names: the items of a source of kind {source.kind} have names of their own",
            hint="a map can rename features",
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
            continue  # of the source's numbers
        if planned is not None and planned.kind not in (None, wanted.kind):
            raise OptionError(
                f"the schema says {wanted.kind} for {name!r}, and a source of kind {source.kind} "
                f"gives {planned.kind}",
                hint="a map can change it",
            )
    for name, words in options.vocabularies.items():
        known = None if options.map else source.vocabularies.get(name)
        if known is not None and words[: len(known)] != known:
            raise OptionError(
                f"the schema's classes of {name!r} are {_some(words)}, and this source has "
                f"{_some(known)}",
                hint="a number would be another class; a map can give the numbers of the schema",
            )
    if options.images is not None:
        check_images(source, options)
    if output.tfds is not None:
        splits = [other.tfds.split for other in beside if other.tfds is not None]
        _check_tfds(source, options, output.directory, output.tfds, splits)


def _some(words: list[str]) -> str:
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
            "--tfds: finished records are copied, and nothing tells what features they have",
            hint="a map has them decoded; one that returns what it is given is enough",
        )
    found = {}
    if options.map is None:
        for name, planned in source.plan.items():
            words = source.vocabularies.get(name)
            summary = FeatureSummary(planned, present=1, vocabulary=words)
            feature, _ = tfds_feature(name, summary, 1, {})
            # Whether an integer is a label is known only when its values are.
            is_open = planned.kind == "int64" and planned.shape == () and words is None
            if not is_open:
                found[name] = feature
    check_planned(LocalStorage(), directory, split, found, beside)


def _check_copy(source: RecordSource, options: DatasetOptions, output: Output) -> None:
    if source.reads(output.directory, output.name):
        raise OptionError(
            f"the output {output.name!r} is the dataset that is read",
            hint="write under another name, or into another folder",
        )
    for option, value in (("--label", options.label), ("--schema", options.schema)):
        if value and options.map is None:
            raise OptionError(
                f"{option}: finished records are copied, and nothing looks into them",
                hint="a map has them decoded; one that returns what it is given is enough",
            )
