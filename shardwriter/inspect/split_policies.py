"""The policies that there are, and what each makes of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from shardwriter.errors import OptionError
from shardwriter.inspect import pipelines, record_policies, shard_policies
from shardwriter.inspect.options import PlanOptions
from shardwriter.inspect.work import Counts, Work

MAX_LISTED: Final = 4096
"""Numbers in a list of the plan; of longer ones the first so many stand there."""

_LOST_SHARE: Final = 0.01  # of the records, from which on it is more than a rounding

Unit = Literal["shards", "records"]


@dataclass(frozen=True)
class Policy:
    """One way in which a framework deals data to ranks and workers.

    Attributes:
        policy: Its name, which stays.
        framework: Whose it is.
        title: What a person calls it.
        deals: Whether it deals whole ``shards`` or ``records``.
        work: What it makes of (records per shard, options).
    """

    policy: str
    framework: str
    title: str
    deals: Unit
    work: Callable[[Counts, PlanOptions], Work]


POLICIES: Final = tuple(
    Policy(*row)
    for row in (
        ("tf-files", "tf.data", "files.shard(W, r)", "shards", shard_policies.tf_files),
        ("tf-auto-file", "tf.data", "auto-shard FILE", "shards", shard_policies.tf_auto_shard_file),
        ("tf-auto", "tf.data", "auto-shard AUTO", "shards", shard_policies.tf_auto_shard_file),
        ("tf-auto-data", "tf.data", "auto-shard DATA", "records",
         shard_policies.tf_auto_shard_data),
        ("torch-files", "torch", "files[i::W*K]", "shards", shard_policies.torch_files),
        ("torch-distributed-sampler", "torch", "DistributedSampler", "records",
         record_policies.torch_sampler),
        ("torch-distributed-sampler-drop", "torch", "sampler, drop_last", "records",
         record_policies.torch_sampler_drop),
        ("webdataset", "webdataset", "split_by_node", "shards",
         shard_policies.webdataset),
        ("datasets-iterable", "datasets", "by_node, iterable", "shards",
         shard_policies.hf_iterable),
        ("datasets-map", "datasets", "by_node, map-style", "records", record_policies.hf_map),
        ("tfds-input-context", "tfds", "InputContext", "shards",
         shard_policies.tfds_input_context),
        ("tfds-even-splits", "tfds", "even_splits", "records", record_policies.tfds_even_splits),
        ("tfds-even-splits-drop", "tfds", "even_splits, drop", "records",
         record_policies.tfds_even_splits_drop),
        ("timm-train", "timm", "ReaderTfds training", "shards", pipelines.timm_train),
        ("timm-eval", "timm", "ReaderTfds validation", "records", pipelines.timm_eval),
        ("dali-fill", "dali", "FILL", "records", pipelines.dali_fill),
        ("dali-partial", "dali", "PARTIAL", "records", pipelines.dali_partial),
        ("dali-drop", "dali", "DROP", "records", pipelines.dali_drop),
        ("grain-index-sampler", "grain", "IndexSampler", "records",
         record_policies.grain_sampler),
        ("grain-index-sampler-drop", "grain", "IndexSampler, drop", "records",
         record_policies.grain_sampler),
        ("grain-slice", "grain", "MapDataset[r::W]", "records", record_policies.grain_slice),
        ("shardwriter-drop", "shardwriter", "drop", "records", record_policies.ours_drop),
        ("shardwriter-pad", "shardwriter", "pad", "records", record_policies.ours_pad),
        ("shardwriter-wrap", "shardwriter", "wrap", "records", record_policies.ours_wrap),
        ("shardwriter-error", "shardwriter", "error", "records", record_policies.ours_error),
    )
)  # fmt: skip


NAMES: Final = tuple(policy.policy for policy in POLICIES)

LIKELY: Final = (
    "tf-auto",  # what tf.distribute and Keras do where nobody chooses
    "webdataset",  # split_by_node is in its own examples
    "datasets-iterable",  # split_dataset_by_node, which Trainer calls on streams
    "dali-fill",  # DALI's default for the last batch
    "shardwriter-drop",  # ShardLoader(uneven="drop"): equal steps from any number of shards
)
"""The policies that most training uses, one of each family; tables show these first."""


def check_names(names: Iterable[str]) -> None:
    """Refuse names of no policy.

    Raises:
        OptionError: There is one; lists those that there are.
    """
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise OptionError(
            f"there is no policy {unknown[0]!r}", hint=f"all, or one of {', '.join(NAMES)}"
        )


def policy_json(policy: Policy, records: Counts, options: PlanOptions) -> dict[str, Any]:
    """Return what one policy makes of a job: an entry of the plan's ``policies``."""
    work = policy.work(records, options)
    refuses = work.error is not None
    samples = work.samples.sum(axis=1)
    idle = 0 if refuses else int((work.samples == 0).sum())
    distinct = work.num_distinct
    distinct_max = work.num_distinct_max if distinct is None else distinct
    total = int(records.sum())
    num_samples = int(samples.sum())
    lanes = work.samples.shape[1]
    listed = 0 if refuses else min(MAX_LISTED, len(samples))
    return {
        "deals": policy.deals,
        "detail": work.detail,
        "error": work.error,
        "framework": policy.framework,
        "hangs": work.hangs,
        "idle_workers": idle,
        "num_distinct": distinct,
        "num_distinct_max": distinct_max,
        "num_dropped": None if distinct is None else total - distinct,
        "num_padded": work.num_padded,
        "num_repeated": None if distinct is None else num_samples - work.num_padded - distinct,
        "num_samples": num_samples,
        "policy": policy.policy,
        "remedy": work.remedy,
        "samples": samples[:listed].tolist(),
        "samples_max": int(samples.max()),
        "samples_min": int(samples.min()),
        "steps": work.steps[:listed].tolist(),
        "steps_max": int(work.steps.max()),
        "steps_min": int(work.steps.min()),
        "title": policy.title,
        "verdict": _verdict(work, samples, idle, total, distinct_max or 0),
        "worker_samples": work.samples[: min(listed, max(1, MAX_LISTED // lanes))].tolist()
        if listed
        else [],
        "worker_samples_max": int(work.samples.max()),
        "worker_samples_min": int(work.samples.min()),
    }


def _verdict(work: Work, samples: Counts, idle: int, num_records: int, num_seen: int) -> str:
    """Return the worst that can be said of a policy: error, hangs, loses, uneven, else ok."""
    if work.error is not None:
        return "error"
    if work.hangs:
        return "hangs"
    if num_records - num_seen > _LOST_SHARE * num_records:
        return "loses"
    if idle or np.ptp(samples):
        return "uneven"
    return "ok"
