"""The plan of a split: what each rank gets, which numbers of shards are good, and the command."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from shardwriter.cli import app
from shardwriter.dataset.naming import parse_output
from shardwriter.dataset.rank_partition import auto_num_shards, good_num_shards
from shardwriter.errors import OptionError
from shardwriter.inspect.split_plan import even_records, failing_policies, plan_json
from shardwriter.inspect.split_policies import LIKELY, MAX_LISTED, POLICIES, PlanOptions
from shardwriter.report.tables import plan_table, remedy_lines
from shardwriter.writing import plan as sampling

COUNTS = st.lists(st.integers(0, 12), min_size=1, max_size=12).filter(any)
OPTIONS = st.builds(
    PlanOptions,
    world=st.integers(1, 5),
    loader_workers=st.integers(0, 4),
    batch_size=st.integers(1, 7),
    drop_last=st.booleans(),
)


def policies(counts, options):
    return {policy["policy"]: policy for policy in plan_json(counts, options)["policies"]}


def shards_of(counts):
    ids = iter(range(sum(counts)))
    return [[next(ids) for _ in range(count)] for count in counts]


def batched(ids, options):
    size = options.batch_size
    batches = [ids[k : k + size] for k in range(0, len(ids), size)]
    return [b for b in batches if len(b) == size or not options.drop_last]


# -- what ranks get --------------------------------------------------------------------------------


def test_uneven_shards_of_a_good_number_are_to_be_made_even():
    found = policies([400, 100, 90, 110], PlanOptions(world=2, batch_size=8))
    for name in ("tf-files", "tf-auto-file", "tfds-input-context", "webdataset", "torch-files"):
        assert found[name]["hangs"]
        assert "multiple of 2 shards with the same number of records" in found[name]["remedy"]


def test_four_shards_over_three_pipelines():
    found = policies(even_records(104, 4), PlanOptions(world=3, batch_size=8))
    for name in ("tf-files", "tf-auto", "tfds-input-context", "webdataset", "torch-files"):
        assert found[name]["samples"] == [52, 26, 26]
        assert found[name]["steps"] == [7, 4, 4]
        assert found[name]["hangs"]
        assert found[name]["verdict"] == "hangs"
        assert "multiple of 3 shards" in found[name]["remedy"]


@given(counts=COUNTS, options=OPTIONS)
def test_numbers_of_every_policy_agree_with_each_other(counts, options):
    for policy in plan_json(counts, options)["policies"]:
        if policy["error"] is not None:
            assert policy["verdict"] == "error"
            assert (policy["samples"], policy["steps"], policy["worker_samples"]) == ([], [], [])
            assert policy["remedy"]
            continue
        assert policy["samples"] == [sum(rank) for rank in policy["worker_samples"]]
        assert len(policy["steps"]) == options.world
        assert policy["hangs"] == (len(set(policy["steps"])) > 1)
        assert policy["samples_min"] == min(policy["samples"])
        assert policy["steps_max"] == max(policy["steps"])
        cells = [samples for rank in policy["worker_samples"] for samples in rank]
        assert policy["idle_workers"] == cells.count(0)
        # No step has more than a batch, and none of a rank that has samples is spare but DALI's.
        for samples, steps in zip(policy["samples"], policy["steps"], strict=True):
            assert samples <= steps * options.batch_size
        if policy["num_distinct"] is not None:
            assert sum(cells) == (
                policy["num_distinct"] + policy["num_repeated"] + policy["num_padded"]
            )
            assert policy["num_distinct"] + policy["num_dropped"] == sum(counts)
            assert min(policy["num_dropped"], policy["num_repeated"]) >= 0
        assert policy["num_distinct_max"] <= sum(counts)


@given(counts=COUNTS, options=OPTIONS)
def test_whole_shards_are_assigned_as_the_frameworks_slice_them(counts, options):
    shards, world, lanes = shards_of(counts), options.world, options.num_lanes
    found = policies(counts, options)
    for rank in range(world):
        mine = batched([i for shard in shards[rank::world] for i in shard], options)
        assert found["tf-files"]["samples"][rank] == sum(map(len, mine))
        assert found["tf-files"]["steps"][rank] == len(mine)
        for lane in range(lanes):
            files = batched(
                [i for shard in shards[rank * lanes + lane :: world * lanes] for i in shard],
                options,
            )
            assert found["torch-files"]["worker_samples"][rank][lane] == sum(map(len, files))
            if found["webdataset"]["error"] is None:
                by_node = shards[rank::world][lane::lanes]
                batches = batched([i for shard in by_node for i in shard], options)
                assert found["webdataset"]["worker_samples"][rank][lane] == sum(map(len, batches))


@given(num_records=st.integers(1, 60), options=OPTIONS)
def test_our_reader_does_what_the_format_says(num_records, options):
    """Rank r reads the positions q = t * W + r; q >= n is padding, or record q mod n."""
    world, lanes, size = options.world, options.num_lanes, options.batch_size
    found = policies([num_records], options)
    turns = {"drop": num_records // world, "pad": -(-num_records // world)}
    for name, mark in (("drop", True), ("pad", True), ("wrap", False)):
        policy = found[f"shardwriter-{name}"]
        per_rank = turns["drop" if name == "drop" else "pad"]
        if not per_rank:
            assert policy["error"] is not None
            continue
        draws = [[t * world + r for t in range(per_rank)] for r in range(world)]
        worker_samples = [
            [
                sum(len(rank[k : k + size]) for k in range(lane * size, per_rank, lanes * size))
                for lane in range(lanes)
            ]
            for rank in draws
        ]
        assert policy["worker_samples"] == worker_samples
        assert policy["steps"] == [-(-per_rank // size)] * world
        drawn = [q for rank in draws for q in rank]
        assert policy["num_padded"] == (sum(q >= num_records for q in drawn) if mark else 0)
        assert policy["num_distinct"] == len({q % num_records for q in drawn})
    error = found["shardwriter-error"]
    assert (error["error"] is None) == (num_records % world == 0)


def test_grain_loses_what_does_not_divide():
    found = policies([103], PlanOptions(world=2))
    assert found["grain-index-sampler"]["samples"] == [51, 51]
    assert found["grain-index-sampler"]["num_dropped"] == 1
    assert "a number of records that 2 divides" in found["grain-index-sampler"]["remedy"]
    assert found["grain-slice"]["samples"] == [52, 51]
    assert policies([104], PlanOptions(world=2))["grain-index-sampler"]["remedy"] is None


def test_timm_without_workers_reads_the_same_shards_on_every_rank():
    found = policies(even_records(100, 4), PlanOptions(world=4, loader_workers=0))
    assert found["timm-eval"]["num_distinct"] == 25
    assert found["timm-eval"]["num_repeated"] == 75
    assert found["timm-train"]["num_distinct_max"] == 25
    assert {found[name]["verdict"] for name in ("timm-eval", "timm-train")} == {"loses"}
    found = policies(even_records(100, 4), PlanOptions(world=4))
    assert found["timm-eval"]["num_distinct"] == 100
    assert {found[name]["verdict"] for name in ("timm-eval", "timm-train")} == {"ok"}


def test_lists_of_many_ranks_are_cut_and_the_extremes_are_not():
    options = PlanOptions(world=5000, loader_workers=8, batch_size=4)
    plan = plan_json(even_records(10_000_003, 100_000), options)
    assert plan["records_per_shard"] is None
    assert (plan["records_per_shard_min"], plan["records_per_shard_max"]) == (100, 101)
    found = {policy["policy"]: policy for policy in plan["policies"]}
    policy = found["tf-files"]
    assert len(policy["samples"]) == len(policy["steps"]) == MAX_LISTED
    assert len(found["torch-files"]["worker_samples"]) == MAX_LISTED // 8
    # The first three shards hold one record more.
    assert (policy["samples_min"], policy["samples_max"]) == (2000, 2001)
    assert policy["num_samples"] == 10_000_003


def test_the_largest_numbers_do_not_overflow():
    options = PlanOptions(world=1024, loader_workers=8, batch_size=256)
    found = policies(even_records(2**61 + 5, 1000), options)
    assert found["dali-partial"]["num_samples"] == 2**61 + 5
    assert found["tf-files"]["num_distinct"] == 2**61 + 5


def test_no_records_is_no_error():
    plan = plan_json([0, 0], PlanOptions(world=2))
    assert plan["policies"] == plan["good_num_shards"] == []
    assert plan["advice"] == "There are no records to split."
    assert plan_json([], PlanOptions())["num_shards"] == 0


# -- numbers of shards -----------------------------------------------------------------------------


@given(
    num_records=st.integers(1, 500),
    num_shards=st.integers(1, 90),
    num_readers=st.integers(1, 30),
)
@example(num_records=4, num_shards=16, num_readers=2)
def test_good_numbers_are_the_nearest_multiples_of_the_readers(
    num_records, num_shards, num_readers
):
    good = good_num_shards(num_records, num_shards, num_readers)
    every = list(range(num_readers, num_records + 1, num_readers))
    assert set(good) <= set(every)
    assert bool(good) == bool(every)
    assert good == sorted(every, key=lambda n: (abs(n - num_shards), n))[: len(good)]
    assert len(good) == min(6, len(every))


@given(
    num_records=st.integers(1, 200),
    options=OPTIONS,
    turns=st.tuples(st.integers(1, 6), st.integers(1, 6)),
)
def test_all_multiples_of_the_readers_are_as_good_as_each_other(num_records, options, turns):
    plans = [
        policies(even_records(num_records, turn * options.num_readers), options) for turn in turns
    ]
    if max(turns) * options.num_readers > num_records:
        return
    for policy in POLICIES:
        if policy.unit == "shards":
            first, second = (plan[policy.name] for plan in plans)
            assert first["worker_samples"] == second["worker_samples"]
            assert first["error"] is None


@pytest.mark.parametrize(
    ("counts", "options", "said"),
    [
        (even_records(104, 4), PlanOptions(3, 2, 8), "Use 6, 12 or 18 shards, not 4: a multiple"),
        (even_records(96, 12), PlanOptions(3, 2, 4), "12 shards suit 3 ranks x 2 workers"),
        ([10, 20, 30, 40], PlanOptions(2, 2, 8), "hold 10 to 40 records: rewrite them"),
        (even_records(5, 4), PlanOptions(3, 2), "no number of shards helps"),
        (even_records(33, 4), PlanOptions(4, 1, 8), "4 shards are a multiple of 4 ranks x 1"),
        (even_records(33, 4), PlanOptions(4, 1, 8), "drop incomplete batches (drop_last)"),
        (even_records(33, 4), PlanOptions(4, 1, 1), "keep 32 of 33 records"),
    ],
)
def test_advice_is_one_sentence_that_says_what_to_do(counts, options, said):
    advice = plan_json(counts, options)["advice"]
    assert said in advice
    assert advice.endswith(".")
    assert advice.count(". ") == 0


@given(num_records=st.integers(1, 300), num_shards=st.integers(1, 40), options=OPTIONS)
def test_advice_that_says_it_is_good_is_right(num_records, num_shards, options):
    counts = even_records(num_records, num_shards)
    plan = plan_json(counts, options)
    suits = " suit " in plan["advice"]
    bad = [p for p in plan["policies"] if p["deals"] == "shards" and (p["hangs"] or p["error"])]
    assert suits == (not bad and num_records >= options.num_readers)
    if plan["advice"].startswith("Use ") and ", and " not in plan["advice"]:
        for good in plan["good_num_shards"]:
            assert not failing_policies(even_records(num_records, good), options)


@given(
    num_records=st.integers(1, 10**7),
    record_bytes=st.integers(1, 10**5),
    world=st.integers(1, 64),
    workers=st.integers(1, 8),
)
def test_the_chosen_number_is_that_of_a_write(num_records, record_bytes, world, workers):
    with pytest.MonkeyPatch.context() as patch:
        sampled = SimpleNamespace(mean_frame_bytes=record_bytes)
        patch.setattr(sampling, "sample_records", lambda *_args, **_options: sampled)
        selection = SimpleNamespace(
            num_items=num_records, options=SimpleNamespace(world=world, loader_workers=workers)
        )
        written = sampling.choose_num_shards(selection, parse_output("out/train@auto"))
    chosen = auto_num_shards(num_records, num_records * record_bytes, world * workers)
    assert chosen == written


@pytest.mark.parametrize(
    "wrong",
    [
        {"world": 0},
        {"loader_workers": -1},
        {"batch_size": 0},
        {"batch_size": 1.5},
        {"world": True},
        {"record_bytes": 0},
        {"record_bytes": float("nan")},
    ],
)
def test_numbers_that_make_no_sense_are_refused(wrong):
    with pytest.raises(OptionError, match=next(iter(wrong))):
        PlanOptions(**wrong)


# -- the command -----------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(app, ["plan", *map(str, arguments)])


def test_the_command_prints_the_plan_as_json():
    done = run("--records", 104, "--shards", 4, "--world", 3, "--batch-size", 8, "--json")
    assert done.exit_code == 0
    expected = plan_json(even_records(104, 4), PlanOptions(world=3, batch_size=8))
    assert json.loads(done.stdout) == expected


def test_the_command_ends_with_advice_and_a_verdict():
    done = run("--records", 104, "--shards", 4, "--world", 3, "--batch-size", 8)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("104 records in 4 shards of 26; 3 ranks x 1 loader worker, batch 8")
    assert lines[-2].startswith("Use 3, 6 or 9 shards, not 4")
    assert lines[-1].startswith("3 ranks: ")
    assert "would hang" in lines[-1]
    row = next(line for line in lines if line.startswith("webdataset split_by_node"))
    assert row.split()[2:] == ["26-52", "4-7", "0", "0", "0", "0", "hangs"]


def test_without_a_number_of_shards_the_size_of_records_chooses_it():
    done = run("--records", 1_000_000, "--record-bytes", 110_000, "--world", 8, "--json")
    plan = json.loads(done.stdout)
    assert plan["num_shards"] == plan["bytes"]["auto_num_shards"] == 552
    assert 100e6 < plan["bytes"]["shard_bytes_max"] <= 200e6
    assert plan["bytes"]["rank_bytes"] == 125_000 * 110_000
    assert plan["bytes"]["total_bytes"] == 110_000_000_000
    text = run("--records", 1_000_000, "--record-bytes", 110_000, "--world", 8).stdout
    assert "@auto gives 552 shards of 199 MB" in text


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--records", 10),
        ("--records", 10, "--shards", 0),
        ("--records", -1, "--shards", 1),
        ("--records", 10, "--shards", 2, "--world", 0),
    ],
)
def test_a_number_that_makes_no_sense_ends_with_2(arguments):
    assert run(*arguments).exit_code == 2


@pytest.mark.parametrize(
    ("num_records", "num_shards", "options"),
    [
        (149_598_773, 1, PlanOptions(1470, 7, 15)),
        (2**61, 2000, PlanOptions(1000, 64, 1)),
        (2**61 + 7, 1999, PlanOptions(3, 2, 4096)),
        (1_281_167, 1021, PlanOptions(8, 0, 256)),
        (99_999_999, 999, PlanOptions(7, 3, 1)),
    ],
)
def test_the_table_fits_80_columns(num_records, num_shards, options):
    plan = plan_json(even_records(num_records, num_shards), options)
    assert Console(width=200).measure(plan_table(plan["policies"])).maximum <= 80
    assert all(line.plain for line in remedy_lines(plan["policies"]))


def test_the_table_shows_the_likely_policies_unless_others_are_asked_for():
    assert set(LIKELY) < {policy.name for policy in POLICIES}
    job = ("--records", 1000, "--shards", 6, "--world", 4)

    def shown(*options):
        done = run(*job, *options)
        assert done.exit_code == 0
        titles = {policy.name: f"{policy.framework} {policy.title} " for policy in POLICIES}
        lines = done.stdout.splitlines()
        return {name for name, title in titles.items() if any(x.startswith(title) for x in lines)}

    assert shown() == set(LIKELY)
    assert "5 of 25 policies, the most used ones; --policy all shows all" in run(*job).stdout
    assert "6 would hang" in run(*job).stdout  # of all
    assert len(shown("--policy", "all")) == len(POLICIES)
    assert shown("--policy", "tf-files,dali-drop") == {"tf-files", "dali-drop"}
    for option in ((), ("--policy", "all")):
        document = json.loads(run(*job, "--json", *option).stdout)
        assert len(document["policies"]) == len(POLICIES)


def test_policies_can_be_chosen():
    options = PlanOptions(3, 2, 4, policies=("webdataset", "dali-drop"))
    plan = plan_json([7, 7, 6, 6], options)
    whole = plan_json([7, 7, 6, 6], PlanOptions(3, 2, 4))["policies"]
    assert plan["policies"] == [p for p in whole if p["policy"] in options.policies]
    assert "of 2 policies" in plan["verdict"]
    with pytest.raises(OptionError, match="'daly'") as caught:
        plan_json([7], PlanOptions(policies=("daly",)))
    assert "dali-fill" in caught.value.hint
