"""The tables of one shard set: its shards, how even they are, its labels and their order."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardwriter.formats.text import clean
from shardwriter.report.render import (
    bytes_text,
    max_cells,
    number_text,
    plural,
    print_pairs,
    share_text,
    shorten,
)

_MAX_ROWS: Final = 24
_MAX_LABELS: Final = 10
_MAX_DEVIATING: Final = 8
_NARROW: Final = 80
_EVEN: Final = 1.02  # largest over mean shard; nobody asks which is the largest below it

Shard = Mapping[str, Any]


def print_shards(
    console: Console, shards: Sequence[Shard], damaged: Collection[str], *, all_shards: bool
) -> None:
    """Print the table of shards.

    Args:
        console: Where to print.
        shards: The report's entries of this set.
        damaged: Paths of files with a defect.
        all_shards: Show every shard; else the smallest, the largest and the damaged of many.
    """
    if not shards:
        return
    shown = list(shards) if all_shards else most_telling(shards, damaged, _MAX_ROWS, num_each=4)
    wide = console.width - _NARROW
    name_cells = max(16, min(max_cells(console, 48), 16 + wide // 2))
    names = [shorten(shard_name(shard), name_cells) for shard in shown]
    bar_cells = max(4, min(30, 14 + wide // 3) - max(0, max(map(len, names)) - 8))
    largest = max(shard["file_bytes"] for shard in shards)
    table = Table(box=None, pad_edge=False)
    table.add_column("shard", justify="right", no_wrap=True)
    for column in ("records", "bytes", "min", "mean", "max"):
        table.add_column(column, justify="right")
    table.add_column("", no_wrap=True)
    table.add_column("")
    for name, shard in zip(names, shown, strict=True):
        is_damaged = shard["path"] in damaged
        cells = round(bar_cells * shard["file_bytes"] / largest) if largest else 0
        packed = shard["compression"]
        state = Text("" if packed == "none" else clean(packed), style="dim")
        if is_damaged:
            state = Text("damaged", style="bold red")
        sizes = shard["record_bytes"]
        table.add_row(
            Text(name),
            f"{shard['num_records']:,}",
            bytes_text(shard["file_bytes"]),
            bytes_text(sizes["min"]),
            bytes_text(sizes["mean"]),
            bytes_text(sizes["max"]),
            Text("━" * cells, style="red" if is_damaged else "cyan"),
            state,
        )
    console.print(table)
    if len(shown) < len(shards):
        which = f"{len(shown)} of {len(shards):,} shards: the smallest, the largest, the damaged"
        console.print(Text(f"{which}; --all-shards shows all", style="dim"))


def most_telling(
    shards: Sequence[Shard], damaged: Collection[str], limit: int, *, num_each: int
) -> list[Shard]:
    """Return the smallest, the largest and the damaged shards of many, in order; or all of few.

    Args:
        shards: The report's entries of one set.
        damaged: Paths of files with a defect.
        limit: How many to return at most.
        num_each: How many of the smallest, and how many of the largest.
    """
    if len(shards) <= limit:
        return list(shards)
    by_size = sorted(range(len(shards)), key=lambda i: (shards[i]["file_bytes"], i))
    chosen = dict.fromkeys([*by_size[:num_each], *by_size[-num_each:]])
    chosen |= dict.fromkeys(i for i, shard in enumerate(shards) if shard["path"] in damaged)
    return [shards[i] for i in sorted(list(chosen)[:limit])]


def shard_name(shard: Shard) -> str:
    """Return a shard's index, or its file's name where that has none."""
    index = shard.get("shard_index")
    return os.path.basename(shard["path"]) if index is None else f"{index}"


def print_facts(console: Console, shard_set: Mapping[str, Any], num_files: int) -> None:
    """Print in a few lines how even the shards are, what is in them, and in which order."""
    rows: list[tuple[str, str | Text]] = []
    if num_files > 1 and shard_set.get("balance"):
        rows.extend(_balance_rows(shard_set["balance"], max(24, console.width - 40)))
    packed = shard_set.get("compressions") or []
    if len(packed) > 1:
        rows.append(("mixed", Text(clean(f"compressions: {', '.join(packed)}"), style="yellow")))
    kinds = shard_set.get("kinds") or {}
    if kinds:
        sampled = " (of the first records of each file)" if shard_set.get("kinds_sampled") else ""
        most = sorted(kinds.items(), key=lambda pair: (-pair[1], pair[0]))
        told = ", ".join(f"{count:,} {clean(kind)}" for kind, count in most)
        rows.append(("kinds", told + sampled))
    labels = shard_set.get("labels") or {}
    if labels.get("counts") is not None:
        rows.append(("labels", _labels_text(labels)))
    shuffle = shard_set.get("shuffle") or {}
    if shuffle:
        rows.append(("order", _shuffle_text(shuffle)))
    if rows:
        print_pairs(console, rows)


def _balance_rows(balance: Mapping[str, Any], name_cells: int) -> list[tuple[str, str | Text]]:
    rows: list[tuple[str, str | Text]] = []
    for what in ("records", "bytes"):
        over = balance[f"{what}_max_over_mean"]
        spread = balance.get(what) or {}
        text = f"{what}: "
        if spread:
            show = bytes_text if what == "bytes" else number_text
            text += f"mean {show(spread['mean'])}, std {show(spread['std'])}"
            if balance.get(f"{what}_cv") is not None:
                text += f" (CV {balance[f'{what}_cv']:.3g})"
            text += ", "
        text += f"largest {over:.2f} x mean"
        told = spread if over >= _EVEN else None
        for worst in ("largest", "smallest"):
            if told and told.get(worst):
                number = told["max" if worst == "largest" else "min"]
                size = bytes_text(number) if what == "bytes" else plural(number, "record")
                text += f"\n{worst} {shorten(os.path.basename(told[worst]), name_cells)}: {size}"
        rows.append(("" if rows else "balance", Text(text)))
    return rows


def _labels_text(labels: Mapping[str, Any]) -> str:
    counts = labels["counts"]
    text = f"{plural(len(counts), 'value')} of {clean(str(labels.get('feature')))!r}"
    if labels.get("source"):
        text += f", counted in the {clean(labels['source'])}"
    if labels.get("num_unlabelled"):
        text += f"; {plural(labels['num_unlabelled'], 'record')} without"
    return text


def _shuffle_text(shuffle: Mapping[str, Any]) -> Text:
    verdict = shuffle["verdict"]
    good = {"shuffled": "green", "unknown": "dim"}
    text = Text(clean(verdict), style=good.get(verdict, "yellow"))
    if shuffle.get("detail"):
        text.append(f": {clean(shuffle['detail'])}", style="default")
    if shuffle.get("remedy"):
        text.append(f"\ndo: {clean(shuffle['remedy'])}", style="green")
    return text


def named_labels(shard_set: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a set's labels with class names beside their numbers, where the names are known."""
    labels: Mapping[str, Any] = shard_set.get("labels") or {}
    feature = (shard_set.get("features") or {}).get(labels.get("feature")) or {}
    words = feature.get("vocabulary") or []
    if not words:
        return labels

    def named(label: str) -> str:
        known = label.isdecimal() and len(label) < 10 and int(label) < len(words)
        return f"{words[int(label)]} ({label})" if known else label

    return {
        **labels,
        **{
            key: {named(label): value for label, value in labels[key].items()}
            for key in ("counts", "shards")
            if labels.get(key)
        },
        "deviating": [
            {**entry, "label": named(str(entry["label"]))}
            for entry in labels.get("deviating") or []
        ],
    }


def print_labels(console: Console, labels: Mapping[str, Any]) -> None:
    """Print the most frequent labels, and the shards whose mix is another."""
    counts = labels.get("counts") or {}
    if counts:
        _print_mix(console, counts)
    deviating = labels.get("deviating") or []
    if not deviating:
        return
    console.print()
    table = Table(title="shards with another mix", title_justify="left", box=None, pad_edge=False)
    table.add_column("shard", justify="right", no_wrap=True)
    table.add_column("label", no_wrap=True)
    for column in ("records", "expected", "ratio", "p"):
        table.add_column(column, justify="right")
    cells = max(12, min(max_cells(console, 40), (console.width - 44) // 2))
    for entry in deviating[:_MAX_DEVIATING]:
        p_value = entry.get("p_value")
        table.add_row(
            Text(shorten(shard_name(entry), cells)),
            Text(shorten(str(entry["label"]), cells)),
            f"{entry['count']:,}",
            number_text(entry["expected"]),
            number_text(entry["ratio"]),
            "-" if p_value is None else f"{p_value:.1g}" if p_value else "0",
        )
    console.print(table)
    _print_rest(console, len(deviating) - _MAX_DEVIATING)


def _print_mix(console: Console, counts: Mapping[str, int]) -> None:
    total = sum(counts.values())
    most = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    console.print()
    table = Table(box=None, pad_edge=False)
    table.add_column("label", no_wrap=True)
    table.add_column("records", justify="right")
    table.add_column("share", justify="right")
    table.add_column("", no_wrap=True)
    cells = max(16, min(max_cells(console, 48), console.width - 52))
    for label, count in most[:_MAX_LABELS]:
        bar = Text("━" * round(24 * count / max(most[0][1], 1)), style="cyan")
        share = share_text(count / total if total else 0)
        table.add_row(Text(shorten(label, cells)), f"{count:,}", share, bar)
    console.print(table)
    _print_rest(console, len(most) - _MAX_LABELS)


def _print_rest(console: Console, num_more: int) -> None:
    if num_more > 0:
        console.print(Text(f"... and {num_more:,} more; --json lists them", style="dim"))
