"""The tables of one shard set: its shards, how even they are, its labels and their order."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardwriter.formats import clean
from shardwriter.inspect import LIKELY
from shardwriter.report.render import (
    bytes_text,
    make_console,
    max_cells,
    number_text,
    plural,
    print_pairs,
    share_text,
    shorten,
)

# The table of a set's features, and what differs between its shards.

_MAX_FEATURES: Final = 60
_MAX_DRIFT: Final = 20

Feature = Mapping[str, Any]


def print_features(
    console: Console, features: Mapping[str, Feature], num_records: int | None
) -> None:
    """Print the features: their types, and what ``--features`` has found of their values.

    Args:
        console: Where to print.
        features: The report's entries, by name.
        num_records: Of the set, where an entry does not tell; None where nothing does.
    """
    if not features:
        return
    console.print()
    has_values = any("lengths" in feature for feature in features.values())
    extra = max(0, console.width - 80)
    table = Table(box=None, pad_edge=False)
    table.add_column("feature", no_wrap=True)
    table.add_column("kind")
    table.add_column("shape", overflow="fold")
    table.add_column("present", justify="right")
    if has_values:
        table.add_column("range", overflow="fold")
        table.add_column("mean", justify="right")
        table.add_column("distinct, most frequent", overflow="fold")
    name_cells = 14 if has_values else 32
    for name in sorted(features)[:_MAX_FEATURES]:
        feature = features[name]
        row: list[str | Text] = [
            Text(shorten(name, name_cells + extra // 3)),
            Text(kind_text(feature)),
            Text(shape_text(feature)),
            presence_text(feature, num_records),
        ]
        if has_values:
            low, high, mean = range_texts(feature)
            spread = low if low == high else f"{low} to {high}"
            row += [Text(spread), Text(mean), Text(values_text(feature, 14 + extra // 2))]
        table.add_row(*row)
    console.print(table)
    if len(features) > _MAX_FEATURES:
        rest = f"... and {len(features) - _MAX_FEATURES:,} more features; --json lists them"
        console.print(Text(rest, style="dim"))


def kind_text(feature: Feature) -> str:
    """Return what a feature's values are: ``int64``, ``jpeg``, ``uint8 raw``, or all it was."""
    kinds = feature.get("kinds") or {}
    if len(kinds) > 1:
        return clean("/".join(sorted(kinds)))
    images = (feature.get("images") or {}).get("formats") or {}
    if images:
        return clean("/".join(sorted(images)))
    if feature.get("format"):
        return clean(feature["format"])
    kind = feature.get("kind") or next(iter(kinds), None) or "unset"
    dtype = feature.get("dtype")
    if feature.get("encoding") == "raw" and dtype:
        return f"{clean(dtype)} raw"
    return clean(dtype or kind)


def shape_text(feature: Feature) -> str:
    """Return the shape, an image's height x width in pixels, or how many values a record has."""
    images = feature.get("images")
    if images and images.get("width"):
        return f"{_span(images['height'])} x {_span(images['width'])}"
    lengths, shape = feature.get("lengths"), feature.get("shape")
    if shape and not (lengths and shape == [None]):
        return " x ".join("*" if size is None else f"{size}" for size in shape)
    if lengths and lengths.get("max") is not None:
        return _span(lengths)
    return "1" if shape == [] else ""


def _span(sizes: Mapping[str, Any]) -> str:
    low, high = number_text(sizes["min"]), number_text(sizes["max"])
    return low if low == high else f"{low}-{high}"


def presence_text(feature: Feature, num_records: int | None) -> str:
    """Return in how many records a feature is: a share where their number is known."""
    present, total = feature.get("present"), feature.get("num_records", num_records)
    if present is None:
        return "-"
    with_values = present - (feature.get("unset") or 0)
    return share_text(min(1, with_values / total)) if total else f"{with_values:,}"


def range_texts(feature: Feature) -> tuple[str, str, str]:
    """Return the smallest, the largest and the mean value; of bytes those of their sizes."""
    numbers, sizes = feature.get("numbers"), feature.get("value_bytes")
    if numbers:
        texts = [number_text(numbers.get(key)) for key in ("min", "max", "mean")]
    elif sizes:
        texts = [bytes_text(sizes.get(key)) for key in ("min", "max", "mean")]
    else:
        texts = ["", "", ""]
    return texts[0], texts[1], texts[2]


def values_text(feature: Feature, value_cells: int) -> str:
    """Return how many values differ, which is the most frequent, and what numbers are none."""
    parts = []
    distinct = feature.get("distinct")
    if distinct:
        about = "" if distinct.get("exact") else "~"
        parts.append(about + number_text(round(distinct["estimate"])))
    top = feature.get("top") or []
    images = feature.get("images") or {}
    if top and not images.get("formats"):
        parts.append(f"{top_text(top[0]['value'], value_cells)} ({top[0]['count']:,})")
    numbers = feature.get("numbers") or {}
    for key, what in (("num_nan", "NaN"), ("num_inf", "inf")):
        if numbers.get(key):
            parts.append(f"{numbers[key]:,} {what}")
    if images.get("num_broken"):
        parts.append(f"{images['num_broken']:,} broken")
    return ", ".join(parts)


def top_text(value: Any, num_cells: int) -> str:
    """Return one value of a feature, no longer than that."""
    if isinstance(value, Mapping):
        return shorten(f"0x{_hex(value.get('base64', ''))}", num_cells)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return number_text(value)
    return shorten(str(value), num_cells)


def _hex(encoded: str) -> str:
    from base64 import b64decode

    return b64decode(encoded).hex()


def print_drift(console: Console, drift: Sequence[Mapping[str, Any]]) -> None:
    """Print in what shards differ from the others."""
    if not drift:
        return
    cells = max(10, min(max_cells(console, 36), (console.width - 30) // 4))
    console.print()
    table = Table(title="shards that differ", title_justify="left", box=None, pad_edge=False)
    table.add_column("feature", no_wrap=True)
    table.add_column("in", no_wrap=True)
    table.add_column("shard", justify="right", no_wrap=True)
    table.add_column("what", overflow="fold")
    for entry in drift[:_MAX_DRIFT]:
        table.add_row(
            Text(shorten(entry["feature"], cells)),
            Text(clean(entry["kind"]), style="yellow"),
            Text(_drift_shard(entry, cells)),
            Text(clean(entry["detail"])),
        )
    console.print(table)
    if len(drift) > _MAX_DRIFT:
        rest = f"... and {len(drift) - _MAX_DRIFT:,} more; --json lists them"
        console.print(Text(rest, style="dim"))


def _drift_shard(entry: Mapping[str, Any], num_cells: int) -> str:
    index = entry.get("shard_index")
    return shorten(drift_file(entry), num_cells) if index is None else f"{index}"


def drift_file(entry: Mapping[str, Any]) -> str:
    """Return the file that differs, as a table names it."""
    return os.path.basename(entry.get("path") or "")


# The training plan in a terminal: a line for each policy, within 80 columns.

_STYLES: Final = {
    "ok": "green",
    "uneven": "yellow",
    "loses": "yellow",
    "hangs": "bold red",
    "error": "red",
}
_TOLD: Final = ("hangs", "error", "loses")
_MAX_REMEDIES: Final = 8


def print_plan(
    plan: Mapping[str, Any], *, all_policies: bool = False, console: Console | None = None
) -> None:
    """Print the report's ``plan``; the verdict is the last line.

    Args:
        plan: The document.
        all_policies: Show all policies that it has; else the likely ones.
        console: Where to print; stdout.
    """
    console = console or make_console()
    for line in plan_lines(plan):
        console.print(line)
    shown = [p for p in plan["policies"] if all_policies or p["policy"] in LIKELY]
    if shown:
        console.print(plan_table(shown))
    num_all = len(plan["policies"])
    if len(shown) < num_all:
        which = f"{len(shown)} of {num_all} policies: what most training uses"
        console.print(Text(f"{which}; --policy all shows all", style="dim"))
    for line in remedy_lines(shown):
        console.print(line)
    console.print(Text(plan["advice"], style="bold"))
    hangs = any(policy["hangs"] for policy in plan["policies"])
    console.print(Text(plan["verdict"], style="bold red" if hangs else "bold green"))


def plan_lines(plan: Mapping[str, Any]) -> list[Text]:
    """Return what is planned for, and sizes where they are known."""
    least, most = plan["records_per_shard_min"], plan["records_per_shard_max"]
    each = f"{most:,}" if least == most else f"{least:,}-{most:,}"
    workers = plan["loader_workers"]
    lines = [
        Text(
            f"{plan['num_records']:,} records in {plan['num_shards']:,} shards of {each}; "
            f"{_count(plan['world'], 'rank')} x {_count(workers, 'loader worker')}, "
            f"batch {plan['batch_size']:,}{', drop_last' if plan['drop_last'] else ''}"
        )
    ]
    sizes = plan["bytes"]
    if sizes:
        lines.append(
            Text(
                f"{bytes_text(sizes['total_bytes'])} in all, "
                f"{bytes_text(sizes['shard_bytes_max'])} a shard, "
                f"{bytes_text(sizes['rank_bytes'])} a rank; @auto would make "
                f"{sizes['auto_num_shards']:,} shards of {bytes_text(sizes['auto_shard_bytes'])}"
            )
        )
    return lines


def plan_table(policies: Sequence[Mapping[str, Any]]) -> Table:
    """Return policies as a table: what ranks get, and what is lost or seen twice."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("policy", no_wrap=True)
    for column in ("samples", "steps", "idle", "lost", "twice", "pads"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for policy in policies:
        verdict = Text(policy["verdict"], style=_STYLES[policy["verdict"]])
        name = Text.assemble((policy["framework"], "bold"), " ", policy["title"])
        if policy["error"] is not None:
            table.add_row(name, "-", "-", "-", "-", "-", "-", verdict)
            continue
        table.add_row(
            name,
            _samples_span(policy["samples_min"], policy["samples_max"], 13),
            _samples_span(policy["steps_min"], policy["steps_max"], 9),
            _number(policy["idle_workers"], 4),
            _number(policy["num_dropped"]),
            _number(policy["num_repeated"]),
            _number(policy["num_padded"], 4),
            verdict,
        )
    return table


def remedy_lines(policies: Sequence[Mapping[str, Any]]) -> list[Text]:
    """Return what to do about the policies that hang, refuse or lose records."""
    bad = [p for p in policies if p["verdict"] in _TOLD and p["remedy"]]
    by_remedy: dict[str, list[str]] = {}
    for policy in bad:
        by_remedy.setdefault(policy["remedy"], []).append(
            f"{policy['framework']} {policy['title']}"
        )
    lines = [Text(f"{', '.join(who)}: {what}") for what, who in by_remedy.items()]
    more = len(lines) - _MAX_REMEDIES
    return lines[:_MAX_REMEDIES] + ([Text(f"... and {more} more; see --json")] if more > 0 else [])


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _samples_span(least: int, most: int, num_cells: int) -> str:
    """Return ``26-52``; ``1600000 +1`` where that is too long for so many cells."""
    if least == most:
        return _number(most, num_cells)
    text = f"{least}-{most}"
    if len(text) > num_cells:
        text = f"{least} +{most - least}"
    if len(text) > num_cells:
        text = f"{_number(least, num_cells // 2)}-{_number(most, num_cells // 2)}"
    return text


def _number(number: int | None, num_cells: int = 5) -> str:
    """Return a number in at most so many cells; ``?`` for one that chance decides."""
    if number is None:
        return "?"
    text = str(number)
    for unit in ("k", "M", "G", "T", "P", "E"):
        if len(text) <= num_cells:
            break
        number = round(number / 1000)
        text = f"{number}{unit}"
    return text


# What to do about each kind of defect, in a sentence.

_BROKEN: Final = (
    "`shardwriter repair PATH OUT` keeps every good record; of a dataset with a manifest, "
    "--source SOURCE makes the shard anew"
)
_NO_RECORDS: Final = (
    "nothing in this file is a TFRecord: give the shards of a dataset; `shardwriter write FILE "
    "OUT@N` makes shards of other data"
)
_NOT_THE_WRITTEN: Final = (
    "copy the shard again from where it was written; of a dataset with a manifest, `shardwriter "
    "repair PATH OUT --source SOURCE` makes it anew"
)
_INDEX: Final = "`shardwriter index PATH` makes the index anew"
_TABLE: Final = (
    "make the table of offsets anew: `shardwriter index PATH --idx` for a whole set of plain "
    "shards, else DALI's tfrecord2idx"
)
_METADATA: Final = "write the metadata anew with tfds.folder_dataset.write_metadata"
_COUNT: Final = (
    "copy the shard again from where it was written; if it is right, make anew what tells otherwise"
)
_REMEDIES: Final = {
    "torn-tail": "`shardwriter repair PATH OUT` copies the records without the zeros behind them",
    "no-crc": "the writer left the checksums out: nothing proves these records; `shardwriter "
    "repair PATH OUT --trust-no-crc` copies them with checksums, where no manifest or index "
    "speaks of them",
    "unmasked-crc": "the writer forgot the mask of the checksums: mend it there; `shardwriter "
    "repair PATH OUT` copies these records with right ones",
    "misnamed": "rename the file, so that its name says what is in it",
    "missing-shard": _NOT_THE_WRITTEN,
    "record-count": _NOT_THE_WRITTEN,
    "other-content": _NOT_THE_WRITTEN,
    "other-compression": _NOT_THE_WRITTEN,
    "other-size": _NOT_THE_WRITTEN,
    "other-bytes": _NOT_THE_WRITTEN,
    "stale-generation": "delete the shards of the run that is not wanted, or readers that take all "
    "files of the folder will mix both",
    "beyond-last": "rename the shards so that they are counted from 0",
    "index": _INDEX,
    "index-broken": _INDEX,
    "index-count": _COUNT,
    "index-offset": _COUNT,
    "idx-broken": _TABLE,
    "idx-count": _COUNT,
    "idx-offset": _TABLE,
    "tfds-broken": _METADATA,
    "tfds-count": _COUNT,
    "tfds-name": _METADATA,
    "tfds-compression": "TFDS reads plain shards only: write them anew with --compression none",
}


def remedy(kind: str) -> str:
    """Return what to do about a defect."""
    return _REMEDIES.get(kind, _BROKEN)


def remedies(defects: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return what to do, each with the kinds of defect that it is for, in order."""
    found: dict[str, list[str]] = {}
    for defect in defects:
        what = _NO_RECORDS if _is_of_no_records(defect) else remedy(defect["kind"])
        kinds = found.setdefault(what, [])
        if defect["kind"] not in kinds:
            kinds.append(defect["kind"])
    return found


def _is_of_no_records(defect: Mapping[str, Any]) -> bool:
    """Tell whether a file that no dataset claims has no good record from its first byte on."""
    return (
        defect["kind"] == "length-crc"
        and defect["offset"] == 0
        and defect.get("num_recoverable") == 0
        and defect["global_index"] is None
    )


def aftermath(defect: Mapping[str, Any]) -> str:
    """Say what is lost with a defect, and where good records begin again; "" if nothing tells."""
    if _is_of_no_records(defect):
        return "no record was found in it"
    told = []
    behind = defect.get("num_recoverable")
    if defect["kind"] == "unmasked-crc":
        return f"readers refuse {behind:,} of them, which `shardwriter repair` keeps"
    if "num_lost" in defect:
        lost = defect["num_lost"]
        if lost is None:
            told.append("how many records are lost is not known")
        elif lost:
            told.append(f"{lost:,} record{'s' * (lost != 1)} lost")
    if defect.get("resync_offset") is not None:
        told.append(f"good again at byte {defect['resync_offset']:,}")
    if behind:
        told.append(
            f"{behind:,} good record{'s' * (behind != 1)} behind it, which only "
            "`shardwriter repair` brings back"
        )
    return "; ".join(told)


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
