"""The two commands, ``shardwriter`` and ``shard-stats``: one file a command, typer only here."""

from __future__ import annotations

import sys

import typer

from shardwriter.cli.append import append
from shardwriter.cli.common import prepare_streams
from shardwriter.cli.find import find
from shardwriter.cli.index import index
from shardwriter.cli.merge import merge
from shardwriter.cli.plan import plan
from shardwriter.cli.repair import repair
from shardwriter.cli.reshard import reshard
from shardwriter.cli.schema import schema
from shardwriter.cli.show import show
from shardwriter.cli.stats import stats
from shardwriter.cli.verify import verify
from shardwriter.cli.write import write

_SETTINGS = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="shardwriter",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings=_SETTINGS,
)
for command in (
    write,
    stats,
    plan,
    show,
    find,
    verify,
    index,
    repair,
    reshard,
    merge,
    append,
    schema,
):
    app.command(context_settings=_SETTINGS)(command)

_stats_app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich"
)
_stats_app.command(name="shard-stats", context_settings=_SETTINGS)(stats)


def _version(wanted: bool) -> None:
    if wanted:
        from shardwriter import __version__

        typer.echo(f"shardwriter {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and stop."
    ),
) -> None:
    """Write data as N TFRecord shards, and prove what is on disk."""


def main() -> None:
    """Run ``shardwriter``."""
    if sys.argv[1:2] == ["beam"]:
        from shardwriter.cli import beam  # its options are Beam's as well: an app of its own

        beam.main()
    prepare_streams()
    app()


def shard_stats() -> None:
    """Run ``shard-stats``."""
    prepare_streams()
    _stats_app()
