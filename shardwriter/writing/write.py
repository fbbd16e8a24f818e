"""``shardwriter.write``: one dataset from whatever the source is."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any

from shardwriter.dataset.indices import item_indices
from shardwriter.dataset.manifest import Manifest
from shardwriter.dataset.naming import parse_output
from shardwriter.formats.compression import Compression
from shardwriter.formats.packing import Deflate
from shardwriter.schema.declared import SchemaLike, declare
from shardwriter.schema.fields import part_names
from shardwriter.sources.queue import stops_queues
from shardwriter.sources.table_options import table_options
from shardwriter.writing.engine import Progress
from shardwriter.writing.images_options import ImageOptions
from shardwriter.writing.notices import Notices, Notify
from shardwriter.writing.options import DatasetOptions, OnError, Order, RunOptions, changed
from shardwriter.writing.progress_bar import writing_progress
from shardwriter.writing.splitting import undivided
from shardwriter.writing.writing import write_all


@stops_queues
def write(
    source: Any,
    out: str | os.PathLike[str],
    *,
    num_shards: int | None = None,
    format: str = "auto",
    map: Callable[[dict[str, Any]], Any] | None = None,
    filter: Callable[[Any], Any] | None = None,
    limit: int | None = None,
    shuffle_seed: int | None = None,
    order: Order = "source",
    key: str | None = None,
    order_seed: int = 0,
    label: str | None = None,
    schema: SchemaLike | None = None,
    compression: Compression | None = None,
    tfds: str | None = None,
    deflate: Deflate = "isal-2",
    world: int = 1,
    loader_workers: int = 1,
    workers: int | EllipsisType | None = ...,
    overwrite: bool | EllipsisType = ...,
    resume: bool | EllipsisType = ...,
    on_error: OnError | EllipsisType = ...,
    strict: bool | EllipsisType = ...,
    run: RunOptions | None = None,
    progress: Progress | bool | None = None,
    notify: Notify | None = None,
    images: ImageOptions | None = None,
    names: Sequence[str] | str | None = None,
    indices: Any = None,
    allow_duplicates: bool = False,
    header: bool = True,
    na: Sequence[str] | str | None = None,
    encoding: str | None = None,
    columns: Sequence[str] | str | None = None,
    drop_columns: Sequence[str] | str | None = None,
) -> Manifest:
    """Write a dataset as N TFRecord shards.

    Args:
        source: A path, a glob, ``module:callable``, an iterable, an object with ``__len__`` and
            ``__getitem__``, a PyTorch ``DataLoader``, a dataset of Hugging Face ``datasets``, a
            queue, or a function that returns one. An item is a mapping from feature names to
            values, a SequenceExample, or the bytes of a finished record.
        out: ``dir/name@16``, or ``dir/name`` to have N chosen.
        num_shards: N, where ``out`` does not say it.
        format: ``image-folder``, ``image-mask``, ``coco``, ``voc``, ``csv``, ``jsonl``,
            ``parquet``, ``numpy``, ``tfrecord``, ``webdataset``, ``audio``,
            ``python``, ``huggingface``, or ``auto``.
        map: Applied to every item's features; returns features, or SKIP.
        filter: Asked of every item as the source lists it (an ImageItem, a row's number, what an
            iterator gives) whether it is to be written at all.
        limit: Only the first so many items.
        shuffle_seed: Write in the order of a permutation of this seed.
        order: ``source``, or ``key``: by a hash of the items' keys, so that the order in which they
            come decides nothing; two items of one key are refused.
        key: For ``key``: the feature of the source's items that is the key; without it what the
            source calls an item (an image's path).
        order_seed: For ``key``: the salt, which chooses another order.
        label: Feature whose values are counted in the manifest.
        schema: Types fixed before the first item, to which every record is held:
            ``"id=string,image=uint8[28,28],mask=raw:uint8[null,null]"``; a JSON file (a manifest,
            its ``schema``); or such a type, a FeatureType or an entry of a manifest by feature.
        compression: ``none``, ``gzip`` or ``zlib``; by default gzip where ``out`` ends in ``.gz``.
        tfds: NAME:VERSION: write a TFDS dataset, for ``tfds.load`` and timm. ``out`` is then
            ``data_dir/split@16``, or ``data_dir`` alone for the split ``train``.
        deflate: ``isal-2``, or ``zlib-6`` for smaller shards that take many times as long.
        world: For a chosen N: how many ranks will read.
        loader_workers: For a chosen N: how many loader workers a rank has.
        workers: Processes that load, map, encode and write; 1 for none but this one, None for as
            many as there are cores that may be used. Left off: as ``run`` says, which says 1.
        overwrite: Replace a dataset of this name once the new one is whole.
        resume: Go on with a run of the same job that was stopped; begin where there is none.
        on_error: ``raise``, or ``skip`` to leave items out that give an error, and list them in
            ``<name>.errors.jsonl``.
        strict: Whether what would be a warning about the data is an error: a number that float32
            does not hold, say.
        run: How else to carry it out; changes no byte.
        progress: True shows a bar, on a terminal (on stderr) or in a notebook; or a function that
            is told now and then how far the write has come.
        notify: Called with what a person should know, a line at a time. Without it warnings go
            through :mod:`warnings`, and information to the logger ``shardwriter``.
        images: Makes images anew in another size, before the map: ``ImageOptions(max_side=512)``.
            It needs Pillow.
        names: What the parts of an item are called that is a tuple or a list: ``("image",
            "label")``, or as text ``"image,label"``; or the columns of a CSV file without a header.
        indices: Only these items, in this order: a list, a range or an array of integers from 0
            up. They come before the filter, the limit and the shuffle.
        allow_duplicates: Whether ``indices`` may name an item more than once.
        header: Whether the first line of a CSV file names its columns; where it does not, ``names``
            may, and else they are ``column0``, ``column1``, ...
        na: Cells of a CSV file that are missing values in columns that are numeric without them,
            beside the empty cell: by default NA, N/A, n/a, NULL, null and None.
        encoding: Of CSV and JSON files that are not UTF-8: ``latin-1``, ``utf-16``, ...
        columns: Of a table: the columns that are read, as a list or as text ``"id,price"``.
        drop_columns: Of a table: the columns that are not read.

    Returns:
        The published manifest.

    Raises:
        UsageError: An option is wrong, or the output exists.
        DataError: The input is at fault; nothing is published.
        RunError: The work could not be done; nothing is published.
    """
    output = parse_output(out, num_shards, compression, tfds=tfds)
    run_options = changed(
        run,
        workers=workers,
        overwrite=overwrite,
        resume=resume,
        on_error=on_error,
        strict=strict,
    )
    declared = declare(schema)
    told = part_names(names)
    options = DatasetOptions(
        map,
        filter,
        limit,
        shuffle_seed,
        label,
        declared.types,
        world=world,
        loader_workers=loader_workers,
        compression=output.compression,
        deflate=deflate,
        order=order,
        key=key,
        order_seed=order_seed,
        tfds=output.tfds,
        vocabularies=declared.vocabularies,
        images=images,
        names=told if header else None,
        indices=None
        if indices is None
        else item_indices(indices, allow_duplicates=allow_duplicates),
        table=table_options(
            header=header,
            names=told,
            na=na,
            encoding=encoding,
            columns=columns,
            drop_columns=drop_columns,
        ),
    )
    skip_errors = run_options.on_error == "skip"
    only = undivided(source, format, output, options, skip_errors=skip_errors)
    with writing_progress(progress) as report:
        return write_all(only.targets, only.select, run_options, report, Notices(notify))[0]
