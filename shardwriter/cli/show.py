"""``shardwriter show``."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwriter.cli.common import VerboseOption, has_reader, hint, print_json, reported


def show(
    path: Annotated[str, typer.Argument(help="A dataset, shard file, folder or manifest.")],
    start: Annotated[int, typer.Option(min=0, help="Number of the first record, from 0.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="Number of records.")] = 1,
    save_images: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Also save the images in these records, as DIR/RECORD-FEATURE.jpg; raw pixels of "
            "a known shape as PNG.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one record per line.")] = False,
    verbose: VerboseOption = False,
) -> None:
    """Print decoded records, in reading order.

    Example: [bold]shardwriter show out/train --start 100 --count 2[/bold]

    Images: [bold]shardwriter show out/train --count 20 --save-images look[/bold]
    """
    with reported(verbose=verbose):
        from shardwriter.errors import OptionError
        from shardwriter.reading import num_records, read_some
        from shardwriter.report import plural, print_record, record_json

        schema = None if save_images is None else _schema(path)
        found, num_saved = False, 0
        for record in read_some(path, start, count, notify=hint):
            found = True
            if json:
                print_json(record_json(record), indent=None)
            else:
                print_record(record)
            if save_images is not None and schema is not None:
                from shardwriter.reading import save_pictures

                saved = save_pictures(record.index, record.features, schema, save_images)
                num_saved += len(saved)
            elif not has_reader():
                break
        if not found:
            total = num_records(path)
            raise OptionError(
                f"no record {start:,}: the dataset has {plural(total, 'record')}, numbered from 0",
                path=path,
                hint=f"--start {total - 1} shows the last one" if total else None,
            )
        if save_images is not None:
            _say_saved(num_saved, save_images)


def _schema(path: str) -> dict[str, dict[str, object]]:
    """Return the features in the manifest; {} without a manifest."""
    from shardwriter.sources import find_one

    manifest = find_one(path).manifest
    return {} if manifest is None else manifest.schema.get("features", {})


def _say_saved(num_saved: int, folder: str) -> None:
    from shardwriter.report import plural

    if num_saved:
        hint(f"wrote {plural(num_saved, 'image')} to {folder}")
    else:
        hint(
            "no images in these records: no feature holds an encoded image, or raw pixels whose "
            "shape is known (from the manifest, or features height, width and channels)"
        )
