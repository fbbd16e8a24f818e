"""Gates: what CI can ask of a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from inspection_reports import feature, images, numbers, policy, report_json, set_json

import shardwriter as sw
from shardwriter.errors import OptionError
from shardwriter.inspect.gates import WORDS, GateOptions, evaluate, gates_passed, split_words


def judge(report: dict[str, Any], **options: Any) -> tuple[bool, str]:
    """Return whether the only gate has passed, and what it says."""
    (gate,) = evaluate(report, GateOptions(**options))
    return gate["passed"], gate["detail"]


def test_nothing_asked_is_no_gate() -> None:
    assert evaluate(report_json(), GateOptions()) == []
    assert gates_passed([])


def test_all_words_pass_on_a_good_report() -> None:
    gates = evaluate(report_json(), GateOptions(fail_on=tuple(WORDS)))
    assert [gate["detail"] for gate in gates] == [f"{word}: none" for word in WORDS]
    assert gates_passed(gates)
    assert {gate["gate"] for gate in gates} == {"fail-on"}


@pytest.mark.parametrize(
    ("found", "passed", "detail"),
    [
        (1000, True, "1,000 records"),
        (999, False, "999 records, expected 1,000: 1 missing"),
        (1002, False, "1,002 records, expected 1,000: 2 too many"),
    ],
)
def test_expect_records(found: int, passed: bool, detail: str) -> None:
    assert judge(report_json(num_records=found), expect_records=1000) == (passed, detail)


def test_max_imbalance_of_shards() -> None:
    uneven = set_json(balance={"bytes_max_over_mean": 2.0, "records_max_over_mean": 1.2})
    assert judge(report_json(uneven), max_imbalance=1.2) == (True, "at most 1.2")
    passed, detail = judge(report_json(uneven), max_imbalance=1.1)
    assert not passed
    assert detail == "the largest shard has 1.20 times the mean in records, 1.1 is allowed"
    passed, detail = judge(report_json(uneven), max_byte_imbalance=1.9)
    assert not passed
    assert "2.00 times the mean in bytes" in detail
    assert judge(report_json(uneven), fail_on=("imbalance",))[0] is False


def test_max_imbalance_of_ranks() -> None:
    """4 shards over 3 pipelines: 52, 26 and 26 records."""
    plan = {"policies": [policy(), policy(samples=[52, 26, 26], title="tf.data, files")]}
    passed, detail = judge(report_json(set_json(plan=plan)), max_imbalance=1.1)
    assert not passed
    assert detail == ("under tf.data, files a rank gets 1.50 times the mean (26 to 52 samples)")
    plan = {"policies": [policy(samples=[0, 0]), policy(samples=[])]}
    assert judge(report_json(set_json(plan=plan)), max_imbalance=1.1)[0]


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("absent", {"features": {"x": feature(absent=3)}}, "feature 'x' is absent from records: 3"),
    ("unset", {"features": {"x": feature(unset=2)}}, "feature 'x' has no value in records: 2"),
    (
        "nan",
        {"features": {"x": feature(numbers=numbers([1.0, float("nan")]))}},
        "feature 'x' has NaN values: 1",
    ),
    (
        "inf",
        {"features": {"x": feature(numbers=numbers([1.0, float("inf")]))}},
        "feature 'x' has infinite values: 1",
    ),
    (
        "broken-images",
        {"features": {"x": feature(images=images({"jpeg": 5}, num_broken=1))}},
        "feature 'x' has broken images: 1",
    ),
    (
        "drift",
        {"drift": [{"feature": "x", "path": "s1", "detail": "is float, elsewhere int64"}]},
        "feature 'x' in s1: is float, elsewhere int64",
    ),
    (
        "kinds",
        {"kinds": {"Example": 990, "text": 9, "empty": 1}},
        "10 records are not Examples (1 empty, 9 text)",
    ),
    (
        "kinds",
        {"kinds": {"Example": 60, "text": 4}, "kinds_sampled": True},
        "4 sampled records are not Examples (4 text)",
    ),
    (
        "labels",
        {
            "labels": {
                "counts": {"0": 10},
                "deviating": [{"label": "0", "path": "s2", "ratio": 3.5}],
            }
        },
        "label '0' is 3.50 times as frequent in s2 as in the set",
    ),
    (
        "unlabelled",
        {"labels": {"counts": {"0": 9}, "num_unlabelled": 7}},
        "7 records have no label",
    ),
    (
        "unshuffled",
        {"shuffle": {"verdict": "sorted", "detail": "labels come one after the other"}},
        "sorted: labels come one after the other",
    ),
    ("no-manifest", {"has_manifest": False}, "train has no manifest"),
    (
        "hangs",
        {"plan": {"policies": [policy(hangs=True, remedy="drop the rest")]}},
        "tf.data, shards hangs (drop the rest)",
    ),
    ("dropped", {"plan": {"policies": [policy(num_dropped=18)]}}, "shards drops 18 samples"),
    ("repeated", {"plan": {"policies": [policy(num_repeated=35)]}}, "repeats 35 samples"),
    ("padded", {"plan": {"policies": [policy(num_padded=2)]}}, "pads 2 samples"),
    ("idle", {"plan": {"policies": [policy(idle_workers=1)]}}, "leaves 1 loader worker idle"),
    ("refused", {"plan": {"policies": [policy(error="too few")]}}, "refuses: too few"),
]


@pytest.mark.parametrize(("word", "changes", "detail"), BAD)
def test_what_a_word_fails_on(word: str, changes: dict[str, Any], detail: str) -> None:
    passed, told = judge(report_json(set_json(**changes)), fail_on=(word,))
    assert not passed
    assert told.startswith(f"{word}: ")
    assert detail in told
    _, of_two = judge(report_json(set_json(name="good"), set_json(**changes)), fail_on=(word,))
    assert "train" in of_two
    assert "good" not in of_two


def test_words_of_the_whole_report() -> None:
    assert judge(report_json(num_defects=2), fail_on=("defects",)) == (
        False,
        "defects: 2 defects",
    )
    assert judge(report_json(notes=["a", "b"]), fail_on=("notes",)) == (False, "notes: a; b")
    shards = [{"num_records": 0, "path": "s1"}, {"num_records": 1, "path": "s2"}]
    assert judge(report_json(shards=shards), fail_on=("empty-shards",)) == (
        False,
        "empty-shards: 1 shard without records: 's1'",
    )


@pytest.mark.parametrize(
    ("word", "changes", "remedy"),
    [
        *((word, {"features": {}}, "--features") for word in ("absent", "drift", "nan", "inf")),
        *(
            (word, {"features": {"x": {"kind": "int64", "unset": 0}}}, "--features")
            for word in ("unset", "broken-images", "drift")
        ),
        ("kinds", {"kinds": {}}, "--features"),
        ("labels", {"labels": {}}, "--label"),
        ("unlabelled", {"labels": {}}, "--label"),
        ("unshuffled", {"shuffle": {}}, "--label"),
        ("unshuffled", {"shuffle": {"verdict": "unknown", "detail": "one label"}}, "one label"),
        *(
            (word, {"plan": {}}, "--world")
            for word in ("hangs", "dropped", "repeated", "padded", "idle", "refused")
        ),
    ],
)
def test_what_is_not_in_the_report_can_not_be_told(
    word: str, changes: dict[str, Any], remedy: str
) -> None:
    passed, detail = judge(report_json(set_json(**changes)), fail_on=(word,))
    assert not passed
    assert detail.startswith(f"{word}: not in the report: ")
    assert remedy in detail


def test_sets_without_records_or_examples_have_nothing_to_fail_on() -> None:
    empty = set_json(0, features={}, kinds={}, labels={}, shuffle={})
    words = ("absent", "drift", "nan", "kinds", "labels", "unshuffled")
    assert gates_passed(evaluate(report_json(empty), GateOptions(fail_on=words)))
    texts = set_json(features={}, kinds={"text": 1000})
    assert gates_passed(evaluate(report_json(texts), GateOptions(fail_on=("nan", "drift"))))


def test_a_long_list_is_cut() -> None:
    notes = [f"note {i}" for i in range(9)]
    _, detail = judge(report_json(notes=notes), fail_on=("notes",))
    assert detail.endswith("note 4; and 4 more")


def test_words_are_taken_apart() -> None:
    assert split_words(["drift, nan", "hangs,drift,"]) == ("drift", "nan", "hangs")
    assert split_words([]) == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fail_on": ("drift", "fire", "flood")}, "unknown --fail-on word 'fire', 'flood'"),
        ({"expect_records": -1}, "expect_records is -1"),
        ({"max_imbalance": 0.9}, "maximum imbalance is 0.9"),
        ({"max_byte_imbalance": float("nan")}, "maximum imbalance is nan"),
        ({"baseline": {}}, "not a report of shard-stats"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        GateOptions(**options)
    if "fail_on" in options:
        assert caught.value.hint is not None
        assert all(word in caught.value.hint for word in WORDS)


def test_a_baseline_gives_a_gate_a_difference() -> None:
    report = report_json(set_json(990, num_shards=8))
    gates = evaluate(report, GateOptions(baseline=report_json()))
    assert [(gate["gate"], gate["passed"]) for gate in gates] == [
        ("baseline", False),
        ("baseline", True),
    ]
    assert gates[0]["detail"] == "train: 10 fewer records (990, were 1,000)"
    same = evaluate(report_json(), GateOptions(baseline=report_json()))
    assert same == [{"gate": "baseline", "passed": True, "detail": "nothing has changed"}]


def test_every_gate_judges_a_real_report(dataset: Path) -> None:
    report = sw.stats(str(dataset)).to_json()
    words = tuple(WORDS)
    options = GateOptions(26, 1.2, 1.2, words, baseline=report)
    gates = evaluate(report, options)
    assert len(gates) == 4 + len(words)
    by_word = {gate["detail"].partition(":")[0]: gate["passed"] for gate in gates[3:-1]}
    assert by_word["defects"]
    assert by_word["empty-shards"]
    assert not by_word["hangs"]
    assert gates[0]["passed"]
    assert gates[1]["passed"]
    assert gates[-1]["detail"] == "nothing has changed"
