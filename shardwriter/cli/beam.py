"""``shardwriter beam``: the jobs, and each of them as a command of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import typer

from shardwriter.cli.beam_args import BeamCommand
from shardwriter.cli.beam_stats import stats
from shardwriter.cli.beam_write import reshard, write
from shardwriter.cli.streams import prepare_streams

_SETTINGS: Final = {"help_option_names": ["-h", "--help"]}


def _app(*commands: Callable[..., Any], **settings: Any) -> typer.Typer:
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings=_SETTINGS,
        **settings,
    )
    for command in commands:
        app.command(cls=BeamCommand, context_settings=_SETTINGS)(command)
    return app


def main() -> None:
    """Run ``shardwriter beam JOB ...``."""
    app = _app(write, stats, reshard, no_args_is_help=True)

    @app.callback()
    def _help() -> None:
        """Write and prove TFRecord shards on any runner of Apache Beam.

        Options that a job does not list are Beam's: --runner, --project, --region, ...
        """

    prepare_streams()
    app(sys.argv[2:], prog_name="shardwriter beam")


def write_shards() -> None:
    """Run ``write``."""
    prepare_streams()
    _app(write)()


def shard_stats() -> None:
    """Run ``stats``."""
    prepare_streams()
    _app(stats)()


def reshard_shards() -> None:
    """Run ``reshard``."""
    prepare_streams()
    _app(reshard)()
