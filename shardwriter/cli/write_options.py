"""Options that ``shardwriter write`` and the Beam jobs share: declared, and understood, once."""

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
    huggingface = "huggingface"


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
        "tfrecord, webdataset, audio, python or huggingface.",
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
        metavar="FEATURE",
        help="The key, for --order key and --split; else what the source calls an item.",
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(
        help="Chooses the random order, or that by key, and the split; 0 where it is left off."
    ),
]
LabelOption = Annotated[
    str | None,
    typer.Option(help="Feature whose values are counted (images: image/class/label)."),
]
SchemaOption = Annotated[
    str | None,
    typer.Option(
        help="Fix types: id=string,image=uint8[28,28],mask=raw:uint8[null,null]; or a JSON file."
    ),
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
StrictOption = Annotated[
    bool,
    typer.Option("--strict", help="What would be a warning about the data is an error."),
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
SplitsOption = Annotated[
    str | None,
    typer.Option(
        "--split",
        metavar="SPLITS",
        show_default=False,
        help="Several datasets: train=0.9,val=0.1 by the items' keys; source (or train,val): those "
        "that the source has. N of each: train=0.9@16,val=0.1@2.",
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

ResizeOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        show_default=False,
        help="Images: 256 makes the shorter side 256 pixels, 256x192 is width and height.",
    ),
]
MaxSideOption = Annotated[
    int | None,
    typer.Option(
        metavar="PIXELS", show_default=False, help="Images: shrink those whose longer side is more."
    ),
]
QualityOption = Annotated[
    int | None,
    typer.Option(
        metavar="Q",
        show_default=False,
        help="Of JPEGs that are made, 1 to 100 (95); alone it makes all of them anew.",
    ),
]
NamesOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        show_default=False,
        help="What the parts of items are called that are tuples: image,label; or, with "
        "--no-header, the columns.",
    ),
]
NoHeaderOption = Annotated[
    bool,
    typer.Option("--no-header", help="CSV: the first line is data; --names a,b names the columns."),
]
NaOption = Annotated[
    str | None,
    typer.Option(
        metavar="CELLS",
        show_default=False,
        help="CSV: cells that are missing values in columns of numbers, beside empty ones; "
        "NA,N/A,n/a,NULL,null,None where it is left off.",
    ),
]
EncodingOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        show_default=False,
        help="CSV, JSON: the encoding of text that is not UTF-8: latin-1, cp1252, utf-16, ...",
    ),
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(metavar="NAMES", show_default=False, help="Tables: read these columns: a,b."),
]
DropColumnsOption = Annotated[
    str | None,
    typer.Option(metavar="NAMES", show_default=False, help="Tables: leave these columns out."),
]
IndicesOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="Only these items, in this order: an .npy file, or text with a number a line.",
    ),
]
AllowDuplicatesOption = Annotated[
    bool,
    typer.Option("--allow-duplicates", help="--indices may name an item more than once."),
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
    """Return what decides the bytes.

    Raises:
        OptionError: An option is wrong, or contradicts another.
    """
    from shardwriter.errors import OptionError
    from shardwriter.schema import declare
    from shardwriter.sources import import_reference, read_indices, table_options
    from shardwriter.writing import DatasetOptions, image_options

    if allow_duplicates and indices is None:
        raise OptionError("--allow-duplicates without --indices", hint="leave it off")
    is_split = split is not None and split.is_by_key
    if seed is not None and not shuffle and order is Order.source and not is_split:
        raise OptionError(
            "--seed without --shuffle, --order key or fractions in --split",
            hint="add one of them, or leave --seed off",
        )
    declared = declare(schema)
    told = None if names is None else tuple(names.split(","))
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
        names=None if no_header else told,
        indices=None
        if indices is None
        else read_indices(indices, allow_duplicates=allow_duplicates),
        table=table_options(
            header=not no_header,
            names=told,
            na=na,
            encoding=encoding,
            columns=columns,
            drop_columns=drop_columns,
        ),
    )


def check_order(source: str, out: str, command: str) -> None:
    """Refuse SOURCE and OUT in the wrong order.

    Args:
        source: SOURCE.
        out: OUT.
        command: What the user has typed in front of them.

    Raises:
        OptionError: SOURCE names N shards and no file, and OUT names what is there.
    """
    from shardwriter.errors import OptionError

    names_shards = re.search(r"[^/]@([1-9][0-9]*|auto)(\.\w+)*$", source) is not None
    if names_shards and not os.path.exists(source) and os.path.exists(out):
        raise OptionError(
            f"SOURCE {source!r} names shards to write, and OUT {out!r} is there already: they seem "
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
    """Return what a write makes: one dataset, or one for each split.

    Raises:
        OptionError: An option is wrong, or the source has no such splits.
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
