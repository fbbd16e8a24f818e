"""Which numbers of shards suit a job.

With N a multiple of W ranks x K workers, the law (record i in shard i mod N) gives reader q the
records i with i mod (W * K) = q, whatever multiple N is. So whether ranks take the same steps
depends on the number of records alone, and all multiples are as good as each other.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwriter.inspect.options import PlanOptions
from shardwriter.inspect.split_policies import POLICIES
from shardwriter.inspect.work import Counts, even


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
