"""Options that ``shardwriter write`` and the Beam jobs share: declared, and understood, once."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shardwriter.dataset.naming import Output
    from shardwriter.options import DatasetOptions


class Format(str, Enum):
    """What ``--format`` takes."""

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


class OnError(str, Enum):
    """What ``--on-error`` takes."""

    raise_ = "raise"
    skip = "skip"


class Order(str, Enum):
    """What ``--order`` takes."""

    source = "source"
    key = "key"


class Compression(str, Enum):
    """What ``--compression`` takes."""

    none = "none"
    gzip = "gzip"
    zlib = "zlib"


class Deflate(str, Enum):
    """What ``--deflate`` takes."""

    isal_2 = "isal-2"
    zlib_6 = "zlib-6"


SourceArgument = Annotated[
    str,
    typer.Argument(help="A folder, a file, a glob, a dataset's name, '-', or module:callable."),
]
OutArgument = Annotated[str, typer.Argument(help="dir/train@16; without @16 a good N is chosen.")]
ShardsOption = Annotated[
    int | None,
    typer.Option("--shards", help="N, where OUT does not say it.", show_default=False),
]
FormatOption = Annotated[
    Format,
    typer.Option(
        metavar="FORMAT",
        help="auto (by looking), image-folder, image-mask, coco, voc, csv, jsonl, parquet, numpy, "
        "tfrecord, webdataset, audio or python.",
    ),
]
MapOption = Annotated[
    str | None,
    typer.Option(help="module:callable, applied to every item's features; may return SKIP."),
]
FilterOption = Annotated[
    str | None,
    typer.Option(help="module:callable, asked of every item before it is loaded or numbered."),
]
LimitOption = Annotated[int | None, typer.Option(help="Only the first so many items.")]
ShuffleOption = Annotated[
    bool, typer.Option("--shuffle", help="Write the items in a random order.")
]
OrderOption = Annotated[
    Order,
    typer.Option(
        metavar="ORDER",
        help="source, or key: by a hash of the items' keys, however the input is ordered.",
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        metavar="FEATURE", help="The key, for --order key; else what the source calls an item."
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(help="Chooses the random order, or that by key; 0 where it is left off."),
]
LabelOption = Annotated[
    str | None,
    typer.Option(help="Feature whose values are counted (images: image/class/label)."),
]
SchemaOption = Annotated[
    str | None, typer.Option(help="Fix types: id=string,price=float (int64, float, bytes, image).")
]
WorldOption = Annotated[int, typer.Option(min=1, help="For a chosen N: how many ranks will read.")]
LoaderWorkersOption = Annotated[
    int, typer.Option(min=1, help="For a chosen N: how many loader workers a rank has.")
]
OnErrorOption = Annotated[
    OnError,
    typer.Option(
        metavar="WHAT", help="An item gives an error: raise (stop), or skip it and list it."
    ),
]
MaxErrorsOption = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, help="Stop when more items than that were skipped so."),
]
CompressionOption = Annotated[
    Compression | None,
    typer.Option(
        metavar="TYPE",
        show_default=False,
        help="none, gzip or zlib; gzip where OUT ends in .gz, else none.",
    ),
]
DeflateOption = Annotated[
    Deflate,
    typer.Option(metavar="NAME", help="Who compresses: isal-2 (fast) or zlib-6 (smaller)."),
]
TfdsOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME:VERSION",
        show_default=False,
        help="Write a TFDS dataset: OUT is its data_dir, or data_dir/split@N.",
    ),
]
IndexOption = Annotated[
    bool, typer.Option("--index", help="Write <shard>.idx files for DALI and the PyPI loader.")
]
ResumeOption = Annotated[
    bool,
    typer.Option("--resume", help="Go on with a run that was stopped; begin where there is none."),
]
OverwriteOption = Annotated[
    bool,
    typer.Option("--overwrite", help="Replace a dataset of this name once the new is whole."),
]


def output_of(
    out: str,
    shards: int | None,
    compression: Compression | None,
    *,
    urls: bool = False,
    tfds: str | None = None,
) -> Output:
    """Understand OUT.

    Raises:
        OptionError: It names no dataset, or contradicts an option.
    """
    from shardwriter.dataset.naming import parse_output

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
) -> DatasetOptions:
    """Return what decides the bytes.

    Raises:
        OptionError: An option is wrong, or contradicts another.
    """
    from shardwriter.callables import import_reference
    from shardwriter.errors import OptionError
    from shardwriter.features.feature_types import parse_schema_option
    from shardwriter.options import DatasetOptions

    if seed is not None and not shuffle and order is Order.source:
        raise OptionError(
            "--seed without --shuffle or --order key",
            hint="add one of them, or leave --seed off",
        )
    return DatasetOptions(
        map=None if map is None else import_reference(map, "--map"),
        filter=None if filter is None else import_reference(filter, "--filter"),
        limit=limit,
        shuffle_seed=(seed or 0) if shuffle else None,
        label=label,
        schema={} if schema is None else parse_schema_option(schema),
        world=world,
        loader_workers=loader_workers,
        compression=output.compression,
        deflate=deflate.value,
        order=order.value,
        key=key,
        order_seed=(seed or 0) if order is Order.key else 0,
        tfds=output.tfds,
    )
