"""Shuffle quality: do neighbours that are read have no more in common than any two records?

Two orders of reading are judged: one shard after the other, and a record of each shard in turn,
which for shards that were dealt round-robin is the order in which they were written. Without labels
only the manifest can tell what was done to the order of the source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final

from shardwriter.inspect.label_scan import LabelScan
from shardwriter.inspect.neighbours import Neighbours, in_turn, one_after_the_other

SEQUENTIAL: Final = "shard-after-shard"
INTERLEAVED: Final = "interleaved"

_UNTOLD: Final = ("unknown", SEQUENTIAL)
_SURE: Final = 6.0  # standard deviations
_CLEAR: Final = 0.1  # of the way from random to sorted
_MANY_TIMES: Final = 2.0  # as often as under random order, which shows where labels are many
_LEAST: Final = 0.005
_FEWER: Final = 0.8  # of what random order gives
_UNEVEN: Final = 0.1  # Cramer's V of shards and labels
_UNLIKELY: Final = 1e-6
_WRITE: Final = "`shardwriter write --shuffle --seed 0`"


def shuffle_by_label(
    scans: Sequence[LabelScan], mix: Mapping[str, Any], *, has_law: bool
) -> dict[str, Any]:
    """Judge by the labels of the records; returns the report's ``shuffle``.

    Args:
        scans: One a shard that is there, in their order.
        mix: What :func:`~shardwriter.inspect.label_mix.label_mix` made of them.
        has_law: Whether the shards are known to have been dealt round-robin.
    """
    feature = scans[0].feature if scans else ""
    if any(scan.too_many for scan in scans):
        return _untold("label", f"{feature!r} has too many values for a label")
    if not any(scan.num_labelled for scan in scans):
        return _untold("label", f"no record has a label in {feature!r}")
    orders = {SEQUENTIAL: one_after_the_other(scans)}
    if len(scans) > 1:
        orders[INTERLEAVED] = in_turn(scans)
    entries = [_order_json(name, order) for name, order in orders.items()]
    verdicts = {entry["order"]: entry["verdict"] for entry in entries}
    is_uneven = shards_differ(mix)
    verdict, judged = _overall(verdicts, orders, is_uneven, has_law)
    chosen = next(entry for entry in entries if entry["order"] == judged)
    period = next((o.period for o in reversed(orders.values()) if o.period is not None), None)
    if verdict == "periodic":
        detail, remedy = _periodic_words(len(scans), period, is_uneven)
    else:
        detail, remedy = chosen["detail"], None
        if verdict != verdicts[judged]:
            detail, remedy = "shards have labels in different shares", f"{_WRITE} writes them mixed"
        elif verdict in ("sorted", "clustered"):
            remedy = _remedy(orders[judged], verdicts, judged, len(scans))
    numbers = ("num_pairs", "same_neighbours", "expected_same", "ratio")
    return {
        "by": "label",
        "detail": detail,
        "feature": feature,
        "order": judged,
        "orders": entries,
        "period": period,
        "remedy": remedy,
        "verdict": verdict,
        **{key: chosen[key] for key in numbers},
    }


def shuffle_by_order(
    order: Mapping[str, Any] | None, mix: Mapping[str, Any], num_shards: int
) -> dict[str, Any]:
    """Judge by what a manifest tells, and no record; returns the report's ``shuffle``.

    Args:
        order: The manifest's ``order``; None for a set without a manifest.
        mix: The label mix that it tells, or ``{}``.
        num_shards: N.
    """
    if shards_differ(mix):
        # Dealing round-robin spreads whatever changes slowly: what is left is a period.
        detail, remedy = _periodic_words(num_shards, None, is_uneven=True)
        return {**_untold("order", detail), "remedy": remedy, "verdict": "periodic"}
    measure = f"`shard-stats PATH --label {mix.get('feature') or 'FEATURE'}` measures it"
    if order is None:
        detail = "no manifest tells in what order records stand"
        return {**_untold("order", detail), "remedy": measure}
    for key, words in (("shuffle", "shuffled"), ("key", "in the order of hashes of their keys")):
        if order.get(key):
            detail = f"records are {words}, with seed {order[key].get('seed')}"
            return {**_untold("order", detail), "verdict": "shuffled"}
    detail = "records stand in source order; how well that is mixed was not measured"
    return {**_untold("order", detail), "remedy": measure}


def shards_differ(mix: Mapping[str, Any]) -> bool:
    """Return whether the shards of a label mix have labels in different shares."""
    evenness = mix.get("evenness") or {"cramers_v": 0.0, "p_value": 1.0}
    is_uneven = evenness["p_value"] < _UNLIKELY and evenness["cramers_v"] >= _UNEVEN
    return bool(mix.get("num_deviating")) or is_uneven


def shuffle_note(shuffle: Mapping[str, Any]) -> str | None:
    """Return one line that says what is wrong with the order and what to do; None if nothing is."""
    if shuffle.get("verdict") not in ("sorted", "clustered", "periodic") or not shuffle["remedy"]:
        return None
    return f"{shuffle['detail']}; {shuffle['remedy']}"


def _untold(by: str, detail: str) -> dict[str, Any]:
    return {
        "by": by,
        "detail": detail,
        "expected_same": None,
        "feature": None,
        "num_pairs": 0,
        "order": None,
        "orders": [],
        "period": None,
        "ratio": None,
        "remedy": None,
        "same_neighbours": None,
        "verdict": "unknown",
    }


def _order_json(name: str, order: Neighbours) -> dict[str, Any]:
    verdict, detail = _judge(order)
    windows = order.windows
    return {
        "detail": detail,
        "expected_same": order.expected_same,
        "num_pairs": order.num_pairs,
        "order": name,
        "period": order.period,
        "ratio": order.same / order.expected_same if order.expected_same else None,
        "run_length": order.run_length,
        "same_neighbours": order.same,
        "verdict": verdict,
        "window": None
        if windows is None
        else {
            "distinct": windows.distinct,
            "expected": windows.expected,
            "num_windows": windows.num_windows,
            "size": windows.size,
        },
    }


def _judge(order: Neighbours) -> tuple[str, str]:
    """Return the verdict on one order of reading, and why."""
    same, expected = order.same, order.expected_same
    noise = _SURE * (order.std + 1)
    words = f"{same:.1%} of neighbours have the same label, {expected:.1%} would be random"
    if order.num_labels < 2:
        return "unknown", "all records have one label"
    way = (same - expected) / (1 - expected)
    is_clear = way >= _CLEAR or (way >= _LEAST and same >= _MANY_TIMES * expected)
    if order.num_same >= order.expected + noise and is_clear:
        if order.is_sorted:
            return "sorted", f"records are sorted by label: {words}"
        return "clustered", f"records of one label stand together: {words}"
    windows = order.windows
    if (
        windows is not None
        and windows.deviation >= _SURE
        and windows.distinct < _FEWER * windows.expected
    ):
        return "clustered", (
            f"{windows.size:,} records in a row have {windows.distinct:,.1f} different labels, "
            f"{windows.expected:,.1f} would be random"
        )
    if order.period is not None:
        return "periodic", f"labels come again every {order.period:,} records"
    if order.num_pairs + 1 - order.num_labels < order.expected + noise:
        return "unknown", f"too few records of each label to tell ({order.num_pairs + 1:,} records)"
    if order.num_same <= order.expected - noise and same < _FEWER * expected:
        return "periodic", f"labels are dealt in turn: {words}"
    return "shuffled", words


def _overall(
    verdicts: Mapping[str, str], orders: Mapping[str, Neighbours], is_uneven: bool, has_law: bool
) -> tuple[str, str]:
    """Return the verdict on the set, and the order that shows it."""
    if is_uneven and has_law:
        return "periodic", SEQUENTIAL
    for verdict in ("sorted", "clustered", "periodic"):
        found = [name for name, of_order in verdicts.items() if of_order == verdict]
        if found:
            return verdict, max(found, key=lambda name: orders[name].same)
    if is_uneven:
        return "clustered", SEQUENTIAL
    return next(((v, name) for name, v in verdicts.items() if v == "shuffled"), _UNTOLD)


def _remedy(order: Neighbours, verdicts: Mapping[str, str], judged: str, num_shards: int) -> str:
    remedy = f"{_WRITE} writes them mixed"
    if judged == SEQUENTIAL and verdicts.get(INTERLEAVED) in ("shuffled", "periodic"):
        return (
            f"{remedy}; so does reading all {num_shards:,} shards at once "
            f"(interleave with cycle_length={num_shards})"
        )
    if order.buffer is None:
        return remedy
    reading = "one shard after the other" if judged == SEQUENTIAL else "all shards in turn"
    least = "at least" if order.buffer.is_enough else "more than"
    return (
        f"{remedy}; else, read {reading}, they take a shuffle buffer of {least} "
        f"{order.buffer.num_records:,} records"
    )


def _periodic_words(num_shards: int, period: int | None, is_uneven: bool) -> tuple[str, str | None]:
    again = "" if period is None else f", again every {period:,} records"
    if not is_uneven:
        return f"labels come in turn{again}; every shard has its share of each", None
    factor = period if period is not None and math.gcd(period, num_shards) > 1 else num_shards
    better = next(n for n in count(num_shards + 1) if math.gcd(n, factor) == 1)
    return (
        f"labels come in step with the {num_shards:,} shards{again}, so that which labels a shard "
        "has depends on its number",
        f"{_WRITE} mixes them; else choose a number of shards that shares no divisor with the "
        f"period, such as {better:,}; until then read all {num_shards:,} shards at once "
        f"(interleave with cycle_length={num_shards})",
    )
