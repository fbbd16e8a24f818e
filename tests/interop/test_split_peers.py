"""The plan's numbers against the loaders themselves: who gets which record, in how many batches.

Most of them live in an environment of their own, which ``scripts/test`` makes.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import pytest
from environments import PEERS, peers_python

from shardwriter.inspect.split_plan import plan_json
from shardwriter.inspect.split_policies import POLICIES, PlanOptions

# What each script answers for; ours are in test_split_plan.py.
ANSWERED = {
    "tf_readers": {"tf-files", "tf-auto-file", "tf-auto", "tf-auto-data"},
    "torch_readers": {
        "torch-files",
        "torch-distributed-sampler",
        "torch-distributed-sampler-drop",
        "webdataset",
        "datasets-iterable",
        "datasets-map",
    },
    "grain_readers": {"grain-index-sampler", "grain-index-sampler-drop", "grain-slice"},
    "dali_readers": {"dali-fill", "dali-partial", "dali-drop"},
    "tfds_readers": {
        "tfds-input-context",
        "tfds-even-splits",
        "tfds-even-splits-drop",
        "timm-train",
        "timm-eval",
    },
}
# More of them would take long: each starts a pipeline for every worker, or processes.
NUM_RANDOM = {"tfds_readers": 2, "tf_readers": 6, "dali_readers": 40}
STARTS_PROCESSES = {"torch_readers": 2, "grain_readers": 1}


def in_turn(num_records, num_shards):
    return [(num_records + num_shards - 1 - shard) // num_shards for shard in range(num_shards)]


def case(counts, world, workers, batch, drop_last=False, **more):
    return {
        "counts": counts,
        "world": world,
        "workers": workers,
        "batch": batch,
        "drop_last": drop_last,
        **more,
    }


def cases(script):
    draw = random.Random(7)
    found = [
        case(in_turn(104, 4), 3, 1, 8),
        case(in_turn(103, 4), 3, 2, 8),
        case(in_turn(103, 9), 2, 3, 5),
        case([10, 0, 3, 7, 7], 2, 1, 4, True),
        case(in_turn(3, 5), 2, 2, 1),  # fewer records than shards and than workers
        case([5, 5], 3, 2, 4),  # fewer shards than ranks
        case([1, 1], 4, 1, 1),  # fewer records than ranks
        case(in_turn(96, 12), 3, 2, 4, True),
        case([7], 1, 0, 3),
        case(in_turn(50, 6), 4, 0, 6),  # ranks that read by themselves
    ]
    for _ in range(NUM_RANDOM.get(script, 150)):
        num_shards = draw.randint(1, 9)
        if draw.random() < 0.6:
            counts = in_turn(draw.randint(1, 60), num_shards)
        else:
            counts = [draw.randint(0, 9) for _ in range(num_shards)]
            counts[0] += not sum(counts)
        numbers = draw.randint(1, 4), draw.randint(0, 3), draw.randint(1, 7)
        found.append(case(counts, *numbers, draw.random() < 0.4))
    for number in range(STARTS_PROCESSES.get(script, 0)):
        found.append(case(in_turn(23, 5), 2, 2, 3, number == 1, processes=True))
    return found


def python_of(script):
    if script == "tf_readers":
        pytest.importorskip("tensorflow")
        return sys.executable
    return peers_python()


def answers(script, asked):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1")
    done = subprocess.run(
        [python_of(script), PEERS / f"{script}.py"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env=environment,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_every_policy_of_others_is_asked_for():
    ours = {policy.name for policy in POLICIES if policy.framework == "shardwriter"}
    assert set.union(ours, *ANSWERED.values()) == {policy.name for policy in POLICIES}


@pytest.mark.parametrize("script", ANSWERED)
def test_the_loader_does_what_the_plan_says(script):
    asked = cases(script)
    seen = set()
    for number, (one, answer) in enumerate(zip(asked, answers(script, asked), strict=True)):
        options = PlanOptions(one["world"], one["workers"], one["batch"], one["drop_last"])
        plan = {p["policy"]: p for p in plan_json(one["counts"], options)["policies"]}
        for name, got in answer.items():
            # dali-fill-padded is dali-fill, with another option that changes no number.
            policy = plan[name.removesuffix("-padded").removesuffix("-stuck")]
            if got is None:  # can be asked only with processes
                continue
            seen.add(policy["policy"])
            check(policy, got, f"case {number}: {one}, {name}")
    assert seen == ANSWERED[script]


def check(policy, got, what):
    if isinstance(got, str):
        assert policy["error"] is not None, (what, got)
        assert policy["error"] in got, what
        return
    assert policy["error"] is None, (what, got)
    assert policy["worker_samples"] == [[sum(map(len, k)) for k in rank] for rank in got], what
    assert policy["samples"] == [sum(len(b) for k in rank for b in k) for rank in got], what
    assert policy["steps"] == [sum(map(len, rank)) for rank in got], what
    ids = [record for rank in got for k in rank for batch in k for record in batch]
    if policy["num_distinct"] is None:
        assert len(set(ids)) <= policy["num_distinct_max"], what
    else:
        assert policy["num_distinct"] == len(set(ids)), what
        assert policy["num_repeated"] == len(ids) - len(set(ids)), what
