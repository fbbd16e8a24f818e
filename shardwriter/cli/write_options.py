"""Options that several commands share: their declarations, and the objects they are parsed into.

``*Option`` and ``*Argument`` are parameter types for typer. `output_of` parses OUT,
`dataset_options` the options that decide the bytes, `datasets_of` SOURCE, OUT and ``--split``.
"""

from __future__ import annotations

import os
import re
import shlex
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwriter.dataset import Output, Split
    from shardwriter.formats import Compression as CompressionName
    from shardwriter.writing import DatasetOptions, Datasets


class Format(str, Enum):
    """Values of ``--format``."""

    auto = "auto"
    image_folder = "image-folder"
    image_mask = "image-mask"
    coco = "coco"
    voc = "voc"
    csv = "csv"
    jsonl = "jsonl"
    parquet = "parquet"
    numpy = "numpy"
    tfrecord = "tfrecord"
    webdataset = "webdataset"
    audio = "audio"
    python = "python"
    huggingface = "huggingface"


class OnError(str, Enum):
    """Values of ``--on-error``."""

    raise_ = "raise"
    skip = "skip"


class Order(str, Enum):
    """Values of ``--order``."""

    source = "source"
    key = "key"


class Compression(str, Enum):
    """Values of ``--compression``."""

    none = "none"
    gzip = "gzip"
    zlib = "zlib"


class Deflate(str, Enum):
    """Values of ``--deflate``."""

    isal_2 = "isal-2"
    zlib_6 = "zlib-6"


SourceArgument = Annotated[
    str,
    typer.Argument(
        help="Input: a folder, a file, a glob, a dataset name, '-' for stdin, or module:callable."
    ),
]
OutArgument = Annotated[
    str,
    typer.Argument(help="Dataset to write: dir/train@16. Without @16, N is chosen from the size."),
]
ShardsOption = Annotated[
    int | None,
    typer.Option("--shards", help="N, the number of shards; same as OUT@N.", show_default=False),
]
FormatOption = Annotated[
    Format,
    typer.Option(
        metavar="FORMAT",
        help="Input format: auto (detect), image-folder, image-mask, coco, voc, csv, jsonl, "
        "parquet, numpy, tfrecord, webdataset, audio, python or huggingface.",
    ),
]
MapOption = Annotated[
    str | None,
    typer.Option(
        help="module:callable that takes and returns the features of an item; SKIP leaves it out."
    ),
]
FilterOption = Annotated[
    str | None,
    typer.Option(
        help="module:callable that returns whether to take an item; called before it is loaded."
    ),
]
LimitOption = Annotated[int | None, typer.Option(help="Write only the first N items.")]
ShuffleOption = Annotated[
    bool, typer.Option("--shuffle", help="Write the items in a random order.")
]
OrderOption = Annotated[
    Order,
    typer.Option(
        metavar="ORDER",
        help="Order of the items: source, or key (a hash of each item's key, so the order of the "
        "input does not matter).",
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        metavar="FEATURE",
        help="Feature that is the item's key, for --order key and --split; default: the name that "
        "the source gives the item.",
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(help="Seed of --shuffle, of --order key and of fractions in --split; default: 0."),
]
ShuffleSeedOption = Annotated[int | None, typer.Option(help="Seed of --shuffle; default: 0.")]
LabelOption = Annotated[
    str | None,
    typer.Option(help="Feature whose values are counted; default for images: image/class/label."),
]
SchemaOption = Annotated[
    str | None,
    typer.Option(
        help="Feature types, as id=string,x=uint8[28,28] or m=raw:uint8[null,null]; or a JSON file."
    ),
]
WorldOption = Annotated[
    int, typer.Option(min=1, help="Ranks that will read the dataset; N is chosen to suit them.")
]
LoaderWorkersOption = Annotated[
    int, typer.Option(min=1, help="Loader workers per rank; N is chosen to suit them.")
]
OnErrorOption = Annotated[
    OnError,
    typer.Option(
        metavar="WHAT",
        help="If an item fails: raise (stop), or skip (leave it out and list it in the error log).",
    ),
]
StrictOption = Annotated[
    bool,
    typer.Option("--strict", help="Treat warnings about the data as errors."),
]
MaxErrorsOption = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, help="With --on-error skip: stop after more than N errors."),
]
CompressionOption = Annotated[
    Compression | None,
    typer.Option(
        metavar="TYPE",
        show_default=False,
        help="none, gzip or zlib; default: gzip if OUT ends in .gz, else none.",
    ),
]
DeflateOption = Annotated[
    Deflate,
    typer.Option(metavar="NAME", help="Compressor: isal-2 (fast) or zlib-6 (smaller files)."),
]
TfdsOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME:VERSION",
        show_default=False,
        help="Write a TFDS dataset; OUT is its data_dir, or data_dir/split@N.",
    ),
]
SplitsOption = Annotated[
    str | None,
    typer.Option(
        "--split",
        metavar="SPLITS",
        show_default=False,
        help="Write one dataset per split: train=0.9,val=0.1 splits by the items' keys; source, or "
        "train,val, takes the splits of the source. With N: train=0.9@16,val=0.1@2.",
    ),
]
IndexOption = Annotated[
    bool,
    typer.Option(
        "--index", help="Also write <shard>.idx files, for DALI and the PyPI package tfrecord."
    ),
]
ResumeOption = Annotated[
    bool,
    typer.Option("--resume", help="Continue a run that was stopped; if there is none, start one."),
]
OverwriteOption = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace a dataset of this name, once the new one is complete."
    ),
]

ResizeOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        show_default=False,
        help="Resize images: 256 for a shorter side of 256 pixels, 256x192 for width x height.",
    ),
]
MaxSideOption = Annotated[
    int | None,
    typer.Option(
        metavar="PIXELS",
        show_default=False,
        help="Shrink images whose longer side has more pixels.",
    ),
]
QualityOption = Annotated[
    int | None,
    typer.Option(
        metavar="Q",
        show_default=False,
        help="Quality of re-encoded JPEGs, 1 to 100; default: 95. Without --resize or --max-side "
        "all JPEGs are re-encoded.",
    ),
]
NamesOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        show_default=False,
        help="Feature names, such as image,label, for items that are tuples, or for the columns of "
        "a CSV file with --no-header.",
    ),
]
NoHeaderOption = Annotated[
    bool,
    typer.Option("--no-header", help="CSV: the first line is data; name the columns with --names."),
]
NaOption = Annotated[
    str | None,
    typer.Option(
        metavar="CELLS",
        show_default=False,
        help="CSV: cells that mean a missing number, besides empty ones; default: "
        "NA,N/A,n/a,NULL,null,None.",
    ),
]
EncodingOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        show_default=False,
        help="CSV, JSON: text encoding, such as latin-1, cp1252 or utf-16; default: UTF-8.",
    ),
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES", show_default=False, help="Tables: read only these columns, as a,b."
    ),
]
DropColumnsOption = Annotated[
    str | None,
    typer.Option(metavar="NAMES", show_default=False, help="Tables: leave out these columns."),
]
IndicesOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="Write only these items, in this order: a .npy file, or text with a number per line.",
    ),
]
AllowDuplicatesOption = Annotated[
    bool,
    typer.Option("--allow-duplicates", help="Allow --indices to name an item more than once."),
]
WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", "-j", min=1, help="Worker processes; default: one per CPU core."),
]


def output_of(
    out: str,
    shards: int | None,
    compression: Compression | None,
    *,
    urls: bool = False,
    tfds: str | None = None,
) -> Output:
    """Return OUT, parsed.

    Raises:
        OptionError: OUT names no dataset, or contradicts an option.
    """
    from shardwriter.dataset import parse_output

    return parse_output(
        out, shards, None if compression is None else compression.value, urls=urls, tfds=tfds
    )


def dataset_options(
    output: Output,
    *,
    map: str | None = None,
    filter: str | None = None,
    limit: int | None = None,
    shuffle: bool = False,
    order: Order = Order.source,
    key: str | None = None,
    seed: int | None = None,
    label: str | None = None,
    schema: str | None = None,
    world: int = 1,
    loader_workers: int = 1,
    deflate: Deflate = Deflate.isal_2,
    split: Split | None = None,
    resize: str | None = None,
    max_side: int | None = None,
    quality: int | None = None,
    names: str | None = None,
    indices: str | None = None,
    allow_duplicates: bool = False,
    no_header: bool = False,
    na: str | None = None,
    encoding: str | None = None,
    columns: str | None = None,
    drop_columns: str | None = None,
) -> DatasetOptions:
    """Return the options that decide the bytes of a dataset.

    Raises:
        OptionError: An option is wrong, or contradicts another.
    """
    from shardwriter.errors import OptionError
    from shardwriter.schema import declare
    from shardwriter.sources import import_reference, read_indices, table_options
    from shardwriter.writing import DatasetOptions, image_options

    if allow_duplicates and indices is None:
        raise OptionError("--allow-duplicates without --indices", hint="drop --allow-duplicates")
    is_split = split is not None and split.is_by_key
    if seed is not None and not shuffle and order is Order.source and not is_split:
        raise OptionError(
            "--seed without --shuffle, --order key or fractions in --split",
            hint="add one of them, or drop --seed",
        )
    declared = declare(schema)
    feature_names = None if names is None else tuple(names.split(","))
    return DatasetOptions(
        map=None if map is None else import_reference(map, "--map"),
        filter=None if filter is None else import_reference(filter, "--filter"),
        limit=limit,
        shuffle_seed=(seed or 0) if shuffle else None,
        label=label,
        schema=declared.types,
        world=world,
        loader_workers=loader_workers,
        compression=output.compression,
        deflate=deflate.value,
        order=order.value,
        key=key,
        order_seed=(seed or 0) if order is Order.key else 0,
        tfds=output.tfds,
        split=split,
        vocabularies=declared.vocabularies,
        images=image_options(resize, max_side, quality),
        names=None if no_header else feature_names,
        indices=None
        if indices is None
        else read_indices(indices, allow_duplicates=allow_duplicates),
        table=table_options(
            header=not no_header,
            names=feature_names,
            na=na,
            encoding=encoding,
            columns=columns,
            drop_columns=drop_columns,
        ),
    )


def check_order(source: str, out: str, command: str) -> None:
    """Raise if SOURCE and OUT seem to be swapped.

    Args:
        source: SOURCE.
        out: OUT.
        command: The command line up to them, for the hint.

    Raises:
        OptionError: SOURCE has the form of an output (``dir/train@16``) and is no file, and OUT
            exists.
    """
    from shardwriter.errors import OptionError

    names_shards = re.search(r"[^/]@([1-9][0-9]*|auto)(\.\w+)*$", source) is not None
    if names_shards and not os.path.exists(source) and os.path.exists(out):
        raise OptionError(
            f"SOURCE {source!r} names shards to write, and OUT {out!r} already exists: they seem "
            "to be swapped",
            hint=f"SOURCE comes first: {command} {shlex.join([out, source])}",
        )


def datasets_of(
    source: str,
    out: str,
    format: Format,
    split: str | None,
    shards: int | None,
    compression: Compression | None,
    seed: int | None,
    options_of: Callable[[Output, Split | None], DatasetOptions],
    *,
    urls: bool = False,
    tfds: str | None = None,
    on_error: OnError = OnError.raise_,
) -> Datasets:
    """Return the datasets that a write produces: one, or one for each split.

    Raises:
        OptionError: An option is wrong, or the source does not have these splits.
    """
    from shardwriter.dataset import parse_split_option, split_outputs
    from shardwriter.writing import single_dataset, split_datasets

    check_order(source, out, f"{'shardwriter beam' if urls else 'shardwriter'} write")
    skip_errors = on_error is OnError.skip
    if split is None:
        output = output_of(out, shards, compression, urls=urls, tfds=tfds)
        options = options_of(output, None)
        return single_dataset(source, format.value, output, options, skip_errors=skip_errors)
    wanted = parse_split_option(split)
    packed: CompressionName | None = None if compression is None else compression.value

    def outputs_of(names: list[str]) -> list[Output]:
        return split_outputs(out, wanted.num_shards, shards, packed, names, urls=urls, tfds=tfds)

    return split_datasets(
        source,
        format.value,
        wanted,
        outputs_of,
        options_of,
        seed or 0,
        skip_errors=skip_errors,
    )
