"""The split plan as JSON: the report's ``plan``, and the output of ``shardwriter plan``.

Good numbers of shards are the multiples of W ranks x K workers. Record i is in shard i mod N, so
for every such N reader q gets the records i with i mod (W * K) = q: all multiples are equally good,
and whether ranks take the same steps depends on the number of records alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import auto_num_shards, good_num_shards
from shardwriter.errors import OptionError
from shardwriter.inspect.split_policies import (
    MAX_LISTED,
    NAMES,
    POLICIES,
    Counts,
    PlanOptions,
    ceil_div,
    check_names,
    policy_json,
    split_evenly,
)


def failing_policies(records: Counts, options: PlanOptions) -> list[str]:
    """Return the titles of the policies that assign whole shards and hang or raise."""
    found = []
    for policy in POLICIES:
        if policy.unit == "shards":
            work = policy.work(records, options)
            if work.hangs or work.error is not None:
                found.append(policy.title)
    return found


def advice(records: Counts, options: PlanOptions, good: list[int]) -> str:
    """Return one sentence: what to do about the number of shards."""
    num_records, num_shards = int(records.sum()), len(records)
    readers = _readers_text(options)
    if not num_records:
        return "There are no records to split."
    if num_records < options.num_readers:
        return (
            f"{num_records:,} records are fewer than {readers}, so no number of shards helps: use "
            "fewer ranks and workers."
        )
    if not failing_policies(records, options):
        return (
            f"{num_shards:,} shards suit {readers}: policies that assign whole shards give every "
            "rank the same steps; policies that assign records do not depend on it."
        )
    if num_shards not in good:
        others = _or_text(sorted(good[:3]))
        rest = _remaining_problem(num_records, options)
        return (
            f"Use {others} shards, not {num_shards:,}: a multiple of {readers}{rest}; policies "
            "that assign records do not depend on it."
        )
    if np.ptp(records) > 1:
        return (
            f"{num_shards:,} shards are a multiple of {readers}, but hold {records.min():,} to "
            f"{records.max():,} records: rewrite them with `shardwriter reshard`, and lengths "
            "differ by at most one; policies that assign records do not depend on it."
        )
    rest = _remaining_problem(num_records, options)
    return (
        f"{num_shards:,} shards are a multiple of {readers}{rest}; policies that assign records do "
        "not depend on it."
    )


def _remaining_problem(num_records: int, options: PlanOptions) -> str:
    """Return what to do besides using a good number of shards; empty if that is enough."""
    per_reader = split_evenly(num_records, options.num_readers)
    if not failing_policies(per_reader, options):
        return ""
    each = options.num_readers * options.batch_size
    whole = num_records // options.num_readers * options.num_readers
    # Readers differ by one record, which may be one more batch for some of them.
    if not options.drop_last and not failing_policies(per_reader, replace(options, drop_last=True)):
        return ", and drop incomplete batches (drop_last), or some ranks take a step more"
    if whole and not failing_policies(split_evenly(whole, options.num_readers), options):
        return f", and keep {whole:,} of {num_records:,} records, or some ranks take a step more"
    return (
        f", and take the same number of steps on every rank: {num_records:,} records are not a "
        f"multiple of {each:,}, and some ranks would take a step more"
    )


def _readers_text(options: PlanOptions) -> str:
    ranks = f"{options.world:,} rank" + ("s" if options.world > 1 else "")
    lanes = options.num_lanes
    return f"{ranks} x {lanes:,} worker" + ("s" if lanes > 1 else "")


def _or_text(numbers: list[int]) -> str:
    texts = [f"{number:,}" for number in numbers]
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " or " + texts[-1]


_MAX_SHARDS: Final = 10_000_000


def even_records(num_records: int, num_shards: int) -> Counts:
    """Return the records of each shard, assigned round-robin: ``int64[num_shards]``.

    Raises:
        OptionError: A number is out of range.
    """
    if not 0 <= num_records < 2**62:
        raise OptionError(f"records is {num_records:,}; it must be 0 or more")
    if not 1 <= num_shards <= _MAX_SHARDS:
        raise OptionError(f"shards is {num_shards:,}; it must be from 1 to {_MAX_SHARDS:,}")
    return split_evenly(num_records, num_shards)


def plan_json(
    records_per_shard: Sequence[int] | NDArray[np.int64], options: PlanOptions
) -> dict[str, Any]:
    """Return how training will split a set of shards under every policy.

    Lists are cut after 4,096 ranks; the minima and maxima cover all ranks.

    Args:
        records_per_shard: ``[num_shards]``: records of each shard, in shard order, such as
            :func:`even_records` returns.
        options: The training job.

    Returns:
        The report's ``plan``, without policies if there are no records.

    Raises:
        OptionError: A policy name is unknown.
    """
    check_names(options.policies)
    records = np.asarray(records_per_shard, np.int64)
    num_records, num_shards = int(records.sum()), len(records)
    chosen = [policy for policy in POLICIES if policy.name in (options.policies or NAMES)]
    policies = [policy_json(policy, records, options) for policy in chosen if num_records]
    good = good_num_shards(num_records, num_shards, options.num_readers)
    return {
        "advice": advice(records, options, good),
        "batch_size": options.batch_size,
        "bytes": _bytes_json(records, options),
        "drop_last": options.drop_last,
        "good_num_shards": good,
        "loader_workers": options.loader_workers,
        "num_records": num_records,
        "num_shards": num_shards,
        "policies": policies,
        "records_per_shard": records.tolist() if num_shards <= MAX_LISTED else None,
        "records_per_shard_max": int(records.max(initial=0)),
        "records_per_shard_min": int(records.min()) if num_shards else 0,
        "verdict": _verdict(policies, options),
        "world": options.world,
    }


def _bytes_json(records: Counts, options: PlanOptions) -> dict[str, Any] | None:
    """Return shard and rank sizes in bytes; None if the size of a record is not known."""
    size, total = options.record_bytes, int(records.sum())
    if size is None or not total:
        return None
    chosen = auto_num_shards(total, total * size, options.num_readers)
    return {
        "auto_num_shards": chosen,
        "auto_shard_bytes": round(ceil_div(total, chosen) * size),
        "rank_bytes": round(ceil_div(total, options.world) * size),
        "record_bytes": size,
        "shard_bytes_max": round(int(records.max()) * size),
        "shard_bytes_min": round(int(records.min()) * size),
        "total_bytes": round(total * size),
    }


def _verdict(policies: list[dict[str, Any]], options: PlanOptions) -> str:
    """Return one line: how many policies are safe."""
    if not policies:
        return "no records, nothing to split"
    counts = Counter(policy["verdict"] for policy in policies)
    same = len(policies) - counts["hangs"] - counts["error"]
    parts = [f"{same} of {len(policies)} policies take the same steps"]
    if counts["loses"]:
        parts.append(f"{counts['loses']} of these lose 1% of the records or more")
    if counts["hangs"]:
        parts.append(f"{counts['hangs']} would hang")
    if counts["error"]:
        parts.append(f"{counts['error']} {'refuses' if counts['error'] == 1 else 'refuse'}")
    who = f"{options.world:,} rank" + ("s" if options.world > 1 else "")
    return f"{who}: {', '.join(parts)}"
