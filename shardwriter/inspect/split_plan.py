"""The plan as JSON: the report's ``plan``, and what ``shardwriter plan`` prints."""

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
    even,
    policy_json,
)

# Which numbers of shards suit a job.
#
# With N a multiple of W ranks x K workers, the law (record i in shard i mod N) gives reader q the
# records i with i mod (W * K) = q, whatever multiple N is. So whether ranks take the same steps
# depends on the number of records alone, and all multiples are as good as each other.


def trouble(records: Counts, options: PlanOptions) -> list[str]:
    """Return the policies that deal whole shards and hang or refuse, by title."""
    found = []
    for policy in POLICIES:
        if policy.deals == "shards":
            work = policy.work(records, options)
            if work.hangs or work.error is not None:
                found.append(policy.title)
    return found


def advice(records: Counts, options: PlanOptions, good: list[int]) -> str:
    """Say in a sentence what to do about the number of shards."""
    num_records, num_shards = int(records.sum()), len(records)
    readers = _readers_text(options)
    if not num_records:
        return "There are no records to split."
    if num_records < options.num_readers:
        return (
            f"{num_records:,} records are fewer than {readers}, so no number of shards helps: use "
            "fewer ranks and workers."
        )
    if not trouble(records, options):
        return (
            f"{num_shards:,} shards suit {readers}: policies that deal whole shards give every "
            "rank the same steps, and those that deal records do not depend on it."
        )
    if num_shards not in good:
        others = _or_text(sorted(good[:3]))
        rest = _what_is_left(num_records, options)
        return (
            f"Use {others} shards, not {num_shards:,}: a multiple of {readers}{rest}; policies "
            "that deal records do not depend on it."
        )
    if np.ptp(records) > 1:
        return (
            f"{num_shards:,} shards are a multiple of {readers}, but hold {records.min():,} to "
            f"{records.max():,} records: write them anew, in turn, and lengths differ by at most "
            "one; policies that deal records do not depend on it."
        )
    return (
        f"{num_shards:,} shards are a multiple of {readers}{_what_is_left(num_records, options)}; "
        "policies that deal records do not depend on it."
    )


def _what_is_left(num_records: int, options: PlanOptions) -> str:
    """Say what a good number of shards does not cure, and what would."""
    dealt = even(num_records, options.num_readers)
    if not trouble(dealt, options):
        return ""
    each = options.num_readers * options.batch_size
    whole = num_records // options.num_readers * options.num_readers
    # The records of every reader differ by one, which may be one batch more for some.
    if not options.drop_last and not trouble(dealt, replace(options, drop_last=True)):
        return ", and drop incomplete batches (drop_last), or some ranks take a step more"
    if whole and not trouble(even(whole, options.num_readers), options):
        return f", and keep {whole:,} of {num_records:,} records, or some ranks take a step more"
    return (
        f", and take the same steps on every rank: {num_records:,} records are no multiple of "
        f"{each:,}, and some ranks would take a step more"
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
    """Return the lengths of N shards that are written in turn: ``int64[num_shards]``.

    Raises:
        OptionError: There are no shards, or less than no records.
    """
    if not 0 <= num_records < 2**62:
        raise OptionError(f"records is {num_records:,}: it is a number from 0 on")
    if not 1 <= num_shards <= _MAX_SHARDS:
        raise OptionError(f"shards is {num_shards:,}: it is a number from 1 to {_MAX_SHARDS:,}")
    return even(num_records, num_shards)


def plan_json(
    records_per_shard: Sequence[int] | NDArray[np.int64], options: PlanOptions
) -> dict[str, Any]:
    """Say how training will split a set of shards, under every policy.

    Lists hold at most 4,096 numbers, the first ranks; the smallest and largest always cover all.

    Args:
        records_per_shard: ``[num_shards]``: records of each shard, in the order of the shards;
            :func:`even_records` gives those of shards that are written in turn.
        options: Who reads.

    Returns:
        The report's ``plan``; no policies where there are no records.

    Raises:
        OptionError: There is no policy of a name.
    """
    check_names(options.policies)
    records = np.asarray(records_per_shard, np.int64)
    num_records, num_shards = int(records.sum()), len(records)
    chosen = [policy for policy in POLICIES if policy.policy in (options.policies or NAMES)]
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
    """Return sizes, where the size of a record is known."""
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
    """Say in a line how many policies are safe."""
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
