"""The command line: ``shardwriter`` with its subcommands, and ``shard-stats``.

One file per command, of its name: it declares the options and calls the library. `common` holds
standard streams, errors and exit codes; `write_options` the options that several commands share;
`write_run` the progress bar and the result of commands that write. Only this room imports typer;
imports of the library are inside the functions, so that ``--help`` is fast.
"""

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
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Write, verify, inspect and read TFRecord shards."""


def main() -> None:
    """Run ``shardwriter``."""
    if sys.argv[1:2] == ["beam"]:
        from shardwriter.cli import beam  # a separate app: it passes unknown options on to Beam

        beam.main()
    prepare_streams()
    app()


def shard_stats() -> None:
    """Run ``shard-stats``."""
    prepare_streams()
    _stats_app()
