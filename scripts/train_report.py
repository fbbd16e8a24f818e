"""What ``train_demo.py`` tells of a run: in a terminal, and as figures."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn


@dataclass
class Epoch:
    """How an epoch went.

    Attributes:
        epoch: Its number, from 0.
        num_samples: Records that were learnt from.
        loss: Mean over them.
        accuracy: RankPartition of the validation records that were told right; None if not asked.
        seconds: Of learning.
        waiting_s: Of these, until the next batch was there.
        names: File names of the records, in the order in which they came.
    """

    epoch: int
    num_samples: int = 0
    loss: float = 0.0
    accuracy: float | None = None
    seconds: float = 0.0
    waiting_s: float = 0.0
    names: list[str] = field(default_factory=list)

    def add(self, other: Epoch) -> None:
        """Add what came after a stop."""
        total = self.num_samples + other.num_samples
        parts = self.loss * self.num_samples + other.loss * other.num_samples
        self.loss, self.num_samples = parts / total, total
        self.seconds += other.seconds
        self.waiting_s += other.waiting_s
        self.names += other.names

    def as_json(self) -> dict[str, Any]:
        """Give all but the names, and the rates."""
        document = asdict(self)
        del document["names"]
        document["samples_per_s"] = self.num_samples / self.seconds
        document["waiting_share"] = self.waiting_s / self.seconds
        return document


class Screen:
    """What a person sees; nothing with ``--json``."""

    def __init__(self, quiet: bool) -> None:
        self.console = Console(quiet=quiet, highlight=False)

    def say(self, text: str = "") -> None:
        """Print a line, which may have rich's markup."""
        self.console.print(text, soft_wrap=True)

    def command(self, *words: str) -> None:
        """Show a command and run it."""
        self.say(f"\n[bold]$ shardwriter {' '.join(words)}[/]")
        sys.stdout.flush()
        out = subprocess.DEVNULL if self.console.quiet else None
        subprocess.run([sys.executable, "-m", "shardwriter", *words], check=True, stdout=out)

    def steps(self, loader: Any, title: str, done: int = 0) -> Progress:
        """Give a bar for the steps of an epoch, which goes when they are done."""
        bar = Progress(
            TextColumn(title),
            BarColumn(),
            MofNCompleteColumn(),
            console=self.console,
            transient=True,
            disable=self.console.quiet or not self.console.is_terminal,
        )
        bar.add_task("", total=len(loader), completed=done)
        return bar


def show_epoch(screen: Screen, found: Epoch, num_epochs: int) -> None:
    """Print a row of the table."""
    row = found.as_json()
    screen.say(
        f"{found.epoch + 1:>5}/{num_epochs}{found.loss:9.3f}{found.accuracy or 0:14.1%}"
        f"{row['samples_per_s']:13,.0f}{row['waiting_share']:11.1%}{found.seconds:9.1f} s"
    )


def count(number: int, noun: str) -> str:
    """Say how many."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def show_stop(screen: Screen, stop: dict[str, Any]) -> None:
    """Print what the stop in mid-epoch has cost."""
    verdict = "[green]yes[/]" if stop["same_records"] else "[red]NO[/]"
    token = stop["token"]
    screen.say(
        f"        stopped behind step {stop['after_steps']} of {stop['of_steps']} with "
        f"{count(stop['workers_before'], 'worker')}, went on with {stop['workers_after']}\n"
        f"        from a token: seed {token['seed']}, epoch {token['epoch']}, "
        f"{token['consumed']:,} of {token['num_records']:,} records consumed\n"
        f"        {stop['records_before']:,} records before the stop and {stop['records_after']:,} "
        f"after it, {stop['repeated']} twice, {stop['missing']} missing\n"
        f"        the same as without a stop, in the same order: {verdict}"
    )
