"""``shardwriter repair``."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated

import typer

from shardwriter.cli.common import (
    JsonOption,
    VerboseOption,
    hint,
    print_json,
    reported,
    say,
    terminable,
)
from shardwriter.cli.write_options import (
    AllowDuplicatesOption,
    ColumnsOption,
    DropColumnsOption,
    EncodingOption,
    FilterOption,
    Format,
    FormatOption,
    IndicesOption,
    KeyOption,
    LabelOption,
    LimitOption,
    MapOption,
    MaxSideOption,
    NamesOption,
    NaOption,
    NoHeaderOption,
    Order,
    OrderOption,
    OverwriteOption,
    QualityOption,
    ResizeOption,
    SchemaOption,
    SeedOption,
    ShuffleOption,
    dataset_options,
)
from shardwriter.cli.write_run import TerminalNotices, leftover_note
from shardwriter.writing import repairing_bars

if TYPE_CHECKING:
    from shardwriter.dataset import Split
    from shardwriter.inspect import RepairReport
    from shardwriter.sources import Source

_MAX_SHARDS = 20


def repair(
    path: Annotated[
        str, typer.Argument(help="A damaged dataset: out/train, train@16 or its folder.")
    ],
    out: Annotated[
        str, typer.Argument(help="Folder for the repaired dataset; files keep their names.")
    ],
    source: Annotated[
        str | None,
        typer.Option(
            "--source", help="Input of the original write; damaged shards are written again."
        ),
    ] = None,
    format: FormatOption = Format.auto,
    map: MapOption = None,
    filter: FilterOption = None,
    limit: LimitOption = None,
    shuffle: ShuffleOption = False,
    order: OrderOption = Order.source,
    key: KeyOption = None,
    seed: SeedOption = None,
    label: LabelOption = None,
    schema: SchemaOption = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            "-j",
            min=1,
            help="With --source: worker processes; default: one per CPU core.",
        ),
    ] = None,
    trust_no_crc: Annotated[
        bool,
        typer.Option(
            "--trust-no-crc",
            help="Keep records whose CRC fields are zero, in files without a manifest or index.",
        ),
    ] = False,
    overwrite: OverwriteOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done, and write nothing.")
    ] = False,
    resize: ResizeOption = None,
    max_side: MaxSideOption = None,
    quality: QualityOption = None,
    json: JsonOption = False,
    names: NamesOption = None,
    indices: IndicesOption = None,
    allow_duplicates: AllowDuplicatesOption = False,
    no_header: NoHeaderOption = False,
    na: NaOption = None,
    encoding: EncodingOption = None,
    columns: ColumnsOption = None,
    drop_columns: DropColumnsOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Recover the intact records of a damaged dataset, or rebuild it from its source.

    Without --source, every record whose CRCs match is copied, and lost records
    are listed in NAME.lost.jsonl. With --source and the options of the original
    write, only damaged and missing shards are written again, and the result is
    byte-identical to the undamaged dataset; order and compression come from the
    manifest. OUT may then be the dataset's own folder.

    Exit code 0 if nothing is lost, else 1.

    Example: [bold]shardwriter repair out/train fixed/ --source photos/[/bold]
    """
    with reported(verbose=verbose, left=lambda: _left(path, out)):
        from shardwriter.dataset import Output
        from shardwriter.errors import OptionError
        from shardwriter.inspect import repair_dataset
        from shardwriter.sources import open_as_split
        from shardwriter.writing import RunOptions

        given = [map, filter, limit, shuffle or None, key, seed, label, schema]
        given += [order.value if order is not Order.source else None]
        given += [resize, max_side, quality]
        given += [names, indices, no_header or None, na, encoding, columns, drop_columns]
        given += [format.value if format is not Format.auto else None]
        if source is None and any(option is not None for option in given):
            raise OptionError(
                "options of the original write have no effect without --source",
                hint="add --source, or drop them",
            )
        options = dataset_options(
            Output(out, path, "", None),
            map=map,
            filter=filter,
            limit=limit,
            shuffle=shuffle,
            order=order,
            key=key,
            seed=seed,
            label=label,
            schema=schema,
            resize=resize,
            max_side=max_side,
            quality=quality,
            names=names,
            indices=indices,
            allow_duplicates=allow_duplicates,
            no_header=no_header,
            na=na,
            encoding=encoding,
            columns=columns,
            drop_columns=drop_columns,
        )

        def opened(split: Split | None) -> Source:
            assert source is not None
            return open_as_split(source, format.value, options.schema, split, options.table)

        # stdout is for the result; what a map prints goes to stderr.
        with terminable(), repairing_bars() as (reading, progress), redirect_stdout(sys.stderr):
            report = repair_dataset(
                path,
                out,
                None if source is None else opened,
                options,
                RunOptions(workers=workers, overwrite=overwrite),
                dry_run=dry_run,
                trust_no_crc=trust_no_crc,
                progress=progress,
                reading=reading,
                notices=TerminalNotices(),
            )
        if json:
            print_json(report.to_json())
        else:
            _print(report)
        if not report.is_whole:
            raise typer.Exit(1)


def _print(report: RepairReport) -> None:
    changed = [s for s in report.shards if s.action not in ("copied", "kept") or s.num_lost != 0]
    would = "would be " if report.is_dry_run else ""
    for shard in changed[:_MAX_SHARDS]:
        lost = ""
        if shard.num_lost is None:
            lost = ", an unknown number lost"
        elif shard.num_lost:
            lost = f", {shard.num_lost:,} lost"
        why = f" ({shard.state}{': ' + shard.detail if shard.detail else ''})"
        say(f"{shard.path}: {would}{shard.action}{why}: {shard.num_records:,} records{lost}")
    if len(changed) > _MAX_SHARDS:
        say(f"... and {len(changed) - _MAX_SHARDS:,} more shards; --json lists them")
    for note in report.notes:
        hint(note)
    if not report.is_dry_run:
        if report.ledger is not None:
            say(f"lost records are listed in {report.ledger}")
        say(f"repaired: {report.manifest or report.out}")
    color = "green" if report.is_whole else "red"
    say(report.verdict, color=color, bold=True)


def _left(path: str, out: str) -> str | None:
    """Return a note about the run directory of a stopped repair; None if there is none."""
    from shardwriter.dataset import Output, dataset_name

    name = dataset_name(os.path.basename(path.rstrip("/")).partition("@")[0])
    note = leftover_note(Output(out, name, "", None))
    return None if note is None else note.replace("--resume", "the same command")
