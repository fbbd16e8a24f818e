"""The tables of a report: shards, balance, labels, features, drift, and the training plan.

Also `remedies`, which maps kinds of defects to what to do about them. `shardwriter.report.page`
uses the texts of the cells, too.
"""

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

# -- features and drift --------------------------------------------------------------------------

_MAX_FEATURES: Final = 60
_MAX_DRIFT: Final = 20

Feature = Mapping[str, Any]


def print_features(
    console: Console, features: Mapping[str, Feature], num_records: int | None
) -> None:
    """Print the table of features: types, and statistics of values if the report has them.

    Args:
        console: The console to print on.
        features: The report's entries, by name.
        num_records: Records of the set, for entries without that number; None if unknown.
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
    """Return a feature's type: ``int64``, ``jpeg``, ``uint8 raw``, or all kinds if they differ."""
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
    """Return the shape, an image's height x width in pixels, or the number of values."""
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
    """Return the share of records with a value, or their number if the total is unknown."""
    present, total = feature.get("present"), feature.get("num_records", num_records)
    if present is None:
        return "-"
    with_values = present - (feature.get("unset") or 0)
    return share_text(min(1, with_values / total)) if total else f"{with_values:,}"


def range_texts(feature: Feature) -> tuple[str, str, str]:
    """Return the smallest, the largest and the mean value; for bytes of their sizes."""
    numbers, sizes = feature.get("numbers"), feature.get("value_bytes")
    if numbers:
        texts = [number_text(numbers.get(key)) for key in ("min", "max", "mean")]
    elif sizes:
        texts = [bytes_text(sizes.get(key)) for key in ("min", "max", "mean")]
    else:
        texts = ["", "", ""]
    return texts[0], texts[1], texts[2]


def values_text(feature: Feature, value_cells: int) -> str:
    """Return the number of distinct values, the most frequent one, and counts of NaN and inf."""
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
    """Return a value of a feature as text of at most ``num_cells`` cells."""
    if isinstance(value, Mapping):
        return shorten(f"0x{_hex(value.get('base64', ''))}", num_cells)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return number_text(value)
    return shorten(str(value), num_cells)


def _hex(encoded: str) -> str:
    from base64 import b64decode

    return b64decode(encoded).hex()


def print_drift(console: Console, drift: Sequence[Mapping[str, Any]]) -> None:
    """Print the table of shards that differ from the others."""
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
    """Return the name of the file that differs."""
    return os.path.basename(entry.get("path") or "")


# -- training plan -------------------------------------------------------------------------------

_STYLES: Final = {
    "ok": "green",
    "uneven": "yellow",
    "loses": "yellow",
    "hangs": "bold red",
    "error": "red",
}
_WITH_REMEDY: Final = ("hangs", "error", "loses")
_MAX_REMEDIES: Final = 8


def print_plan(
    plan: Mapping[str, Any], *, all_policies: bool = False, console: Console | None = None
) -> None:
    """Print the report's ``plan``; the verdict is the last line.

    Args:
        plan: The report's entry.
        all_policies: List all its policies; else the likely ones.
        console: The console to print on; None for stdout.
    """
    console = console or make_console()
    for line in plan_lines(plan):
        console.print(line)
    shown = [p for p in plan["policies"] if all_policies or p["policy"] in LIKELY]
    if shown:
        console.print(plan_table(shown))
    num_all = len(plan["policies"])
    if len(shown) < num_all:
        which = f"{len(shown)} of {num_all} policies, the most used ones"
        console.print(Text(f"{which}; --policy all shows all", style="dim"))
    for line in remedy_lines(shown):
        console.print(line)
    console.print(Text(plan["advice"], style="bold"))
    hangs = any(policy["hangs"] for policy in plan["policies"])
    console.print(Text(plan["verdict"], style="bold red" if hangs else "bold green"))


def plan_lines(plan: Mapping[str, Any]) -> list[Text]:
    """Return the inputs of the plan, and sizes if they are known."""
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
                f"{bytes_text(sizes['shard_bytes_max'])} per shard, "
                f"{bytes_text(sizes['rank_bytes'])} per rank; @auto gives "
                f"{sizes['auto_num_shards']:,} shards of {bytes_text(sizes['auto_shard_bytes'])}"
            )
        )
    return lines


def plan_table(policies: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of policies: samples and steps of ranks, lost and repeated records."""
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
    """Return the remedies of policies that hang, fail or lose records."""
    bad = [p for p in policies if p["verdict"] in _WITH_REMEDY and p["remedy"]]
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
    """Return ``26-52``, or ``1600000 +1`` if that has more than ``num_cells`` cells."""
    if least == most:
        return _number(most, num_cells)
    text = f"{least}-{most}"
    if len(text) > num_cells:
        text = f"{least} +{most - least}"
    if len(text) > num_cells:
        text = f"{_number(least, num_cells // 2)}-{_number(most, num_cells // 2)}"
    return text


def _number(number: int | None, num_cells: int = 5) -> str:
    """Return a number in at most ``num_cells`` cells; ``?`` for a random one (None)."""
    if number is None:
        return "?"
    text = str(number)
    for unit in ("k", "M", "G", "T", "P", "E"):
        if len(text) <= num_cells:
            break
        number = round(number / 1000)
        text = f"{number}{unit}"
    return text


# -- defects and their remedies ------------------------------------------------------------------

_BROKEN: Final = (
    "`shardwriter repair PATH OUT` keeps every good record; for a dataset with a manifest, "
    "--source SOURCE writes the shard again"
)
_NO_RECORDS: Final = (
    "nothing in this file is a TFRecord: give the shards of a dataset; `shardwriter write FILE "
    "OUT@N` writes other data as shards"
)
_NOT_THE_WRITTEN: Final = (
    "copy the shard again from its original location; for a dataset with a manifest, `shardwriter "
    "repair PATH OUT --source SOURCE` writes it again"
)
_INDEX: Final = "`shardwriter index PATH` writes the index file again"
_TABLE: Final = (
    "write the .idx files again: `shardwriter index PATH --idx` for a complete set of uncompressed "
    "shards, else DALI's tfrecord2idx"
)
_METADATA: Final = "write the metadata again with tfds.folder_dataset.write_metadata"
_COUNT: Final = (
    "copy the shard again from its original location; if the shard is right, write the file with "
    "the other count again"
)
_REMEDIES: Final = {
    "torn-tail": "`shardwriter repair PATH OUT` copies the records without the zeros after them",
    "no-crc": "the writer left out the checksums, so these records can not be verified; "
    "`shardwriter repair PATH OUT --trust-no-crc` copies them with checksums, if they are in no "
    "manifest or index",
    "unmasked-crc": "the writer did not mask the checksums: fix the writer; `shardwriter repair "
    "PATH OUT` copies these records with correct checksums",
    "misnamed": "rename the file, so that its name matches its content",
    "missing-shard": _NOT_THE_WRITTEN,
    "record-count": _NOT_THE_WRITTEN,
    "other-content": _NOT_THE_WRITTEN,
    "other-compression": _NOT_THE_WRITTEN,
    "other-size": _NOT_THE_WRITTEN,
    "other-bytes": _NOT_THE_WRITTEN,
    "stale-generation": "delete the shards of the older run: readers that read all files of the "
    "folder mix both",
    "beyond-last": "rename the shards so that their numbers start at 0",
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
    "tfds-compression": "TFDS reads only uncompressed shards: write them with --compression none",
}


def remedy(kind: str) -> str:
    """Return the remedy of a kind of defect."""
    return _REMEDIES.get(kind, _BROKEN)


def remedies(defects: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the remedies of defects, each with the kinds it is for, in order of the defects."""
    found: dict[str, list[str]] = {}
    for defect in defects:
        what = _NO_RECORDS if _is_of_no_records(defect) else remedy(defect["kind"])
        kinds = found.setdefault(what, [])
        if defect["kind"] not in kinds:
            kinds.append(defect["kind"])
    return found


def _is_of_no_records(defect: Mapping[str, Any]) -> bool:
    """Return whether a file that belongs to no dataset has no intact record at all."""
    return (
        defect["kind"] == "length-crc"
        and defect["offset"] == 0
        and defect.get("num_recoverable") == 0
        and defect["global_index"] is None
    )


def aftermath(defect: Mapping[str, Any]) -> str:
    """Return what is lost, and where intact records begin again; "" if that is not known."""
    if _is_of_no_records(defect):
        return "no record was found in it"
    parts = []
    behind = defect.get("num_recoverable")
    if defect["kind"] == "unmasked-crc":
        return f"readers refuse {behind:,} records with them, which `shardwriter repair` keeps"
    if "num_lost" in defect:
        lost = defect["num_lost"]
        if lost is None:
            parts.append("an unknown number of records lost")
        elif lost:
            parts.append(f"{lost:,} record{'s' * (lost != 1)} lost")
    if defect.get("resync_offset") is not None:
        parts.append(f"good again at byte {defect['resync_offset']:,}")
    if behind:
        parts.append(
            f"{behind:,} good record{'s' * (behind != 1)} after it, which only "
            "`shardwriter repair` recovers"
        )
    return "; ".join(parts)


# -- shards, balance and labels ------------------------------------------------------------------


_MAX_ROWS: Final = 24
_MAX_LABELS: Final = 10
_MAX_DEVIATING: Final = 8
_NARROW: Final = 80
_EVEN: Final = 1.02  # largest over mean shard; below it the largest shard is not named

Shard = Mapping[str, Any]


def print_shards(
    console: Console, shards: Sequence[Shard], damaged: Collection[str], *, all_shards: bool
) -> None:
    """Print the table of shards.

    Args:
        console: The console to print on.
        shards: The report's entries of this set.
        damaged: Paths of files with a defect.
        all_shards: List every shard; else the smallest, the largest and the damaged of many.
    """
    if not shards:
        return
    shown = list(shards) if all_shards else select_shards(shards, damaged, _MAX_ROWS, num_each=4)
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


def select_shards(
    shards: Sequence[Shard], damaged: Collection[str], limit: int, *, num_each: int
) -> list[Shard]:
    """Return the smallest, the largest and the damaged shards of many, in order; or all of few.

    Args:
        shards: The report's entries of one set.
        damaged: Paths of files with a defect.
        limit: The most shards to return.
        num_each: Number of the smallest, and of the largest.
    """
    if len(shards) <= limit:
        return list(shards)
    by_size = sorted(range(len(shards)), key=lambda i: (shards[i]["file_bytes"], i))
    chosen = dict.fromkeys([*by_size[:num_each], *by_size[-num_each:]])
    chosen |= dict.fromkeys(i for i, shard in enumerate(shards) if shard["path"] in damaged)
    return [shards[i] for i in sorted(list(chosen)[:limit])]


def shard_name(shard: Shard) -> str:
    """Return a shard's number, or the name of its file without one."""
    index = shard.get("shard_index")
    return os.path.basename(shard["path"]) if index is None else f"{index}"


def print_facts(console: Console, shard_set: Mapping[str, Any], num_files: int) -> None:
    """Print a few lines on the balance of the shards, kinds of records, labels and order."""
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
        counts = ", ".join(f"{count:,} {clean(kind)}" for kind, count in most)
        rows.append(("kinds", counts + sampled))
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
        for worst in ("largest", "smallest") if over >= _EVEN else ():
            if spread.get(worst):
                number = spread["max" if worst == "largest" else "min"]
                size = bytes_text(number) if what == "bytes" else plural(number, "record")
                text += f"\n{worst} {shorten(os.path.basename(spread[worst]), name_cells)}: {size}"
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
    """Return a set's labels, with class names before their numbers if they are known."""
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
    """Print the most frequent labels, and the shards whose mix differs."""
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
