"""Reports in the form that ``shard-stats --json`` has, made by hand and at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from shardwriter.inspect.split_plan import plan_json
from shardwriter.inspect.split_policies import PlanOptions

SIZES = {
    "histogram": [
        {"from": 64, "below": 128, "count": 20},
        {"from": 256, "below": 512, "count": 6},
    ],
    "min": 100,
    "mean": 123.4,
    "max": 300,
}


def shard_json(index: int, num_shards: int = 4, **changes: Any) -> dict[str, Any]:
    """One entry of ``shards``."""
    return {
        "path": f"/data/train.tfrecord-{index:05d}-of-{num_shards:05d}",
        "shard_index": index,
        "set": 0,
        "num_records": 7 - min(index, 3) // 2,
        "payload_bytes": 700,
        "file_bytes": 812 - 10 * min(index, 40),
        "compression": "none",
        "crc32c": "0badcafe",
        "record_bytes": SIZES,
        **changes,
    }


def defect_json(**changes: Any) -> dict[str, Any]:
    """One entry of ``defects``."""
    return {
        "kind": "length-crc",
        "path": shard_json(1)["path"],
        "shard_index": 1,
        "record_index": 2,
        "global_index": 9,
        "offset": 232,
        "detail": "the length has another CRC: 0x1 and not 0x2",
        "num_lost": 1,
        "resync_offset": 348,
        "num_recoverable": 4,
        **changes,
    }


def balance_json(shards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The ``balance`` of shards, near enough."""
    found: dict[str, Any] = {}
    for what, key in (("records", "num_records"), ("bytes", "file_bytes")):
        sizes = [shard[key] for shard in shards]
        mean = sum(sizes) / max(len(sizes), 1)
        found[what] = {
            "min": min(sizes, default=0),
            "mean": mean,
            "max": max(sizes, default=0),
            "std": 1.5,
            "largest": shards[0]["path"] if shards else None,
            "smallest": shards[-1]["path"] if shards else None,
        }
        found[f"{what}_max_over_mean"] = max(sizes, default=0) / mean if mean else 1.0
        found[f"{what}_cv"] = 0.08
    return found


LABELS = {
    "feature": "label",
    "source": "records",
    "counts": {"cat": 16, "dog": 9, "<b>owl</b>": 1},
    "shards": {"cat": [7, 3, 3, 3], "dog": [0, 3, 3, 3], "<b>owl</b>": [0, 1, 0, 0]},
    "initial_dist": {"cat": 16 / 26, "dog": 9 / 26, "<b>owl</b>": 1 / 26},
    "num_unlabelled": 2,
    "deviating": [
        {
            "path": shard_json(0)["path"],
            "shard_index": 0,
            "label": "cat",
            "count": 7,
            "expected": 4.3,
            "ratio": 1.63,
            "p_value": 1.2e-7,
        }
    ],
}

SHUFFLE = {
    "by": "label",
    "num_pairs": 22,
    "same_neighbours": 0.9,
    "expected_same": 0.5,
    "ratio": 1.8,
    "verdict": "sorted",
    "detail": "neighbours share their label in 90% of pairs, 50% would be random",
    "remedy": "write with --shuffle --seed 1",
}

QUANTILES = {"0.01": 0, "0.05": 1, "0.25": 20, "0.5": 50, "0.75": 80, "0.95": 97, "0.99": 99}

FEATURES: dict[str, Any] = {
    "image": {
        "kind": "bytes",
        "dtype": None,
        "shape": [],
        "encoding": "image",
        "format": "jpeg",
        "present": 26,
        "unset": 0,
        "num_records": 26,
        "absent": 0,
        "kinds": {"bytes": 26},
        "lengths": {"min": 1, "mean": 1.0, "max": 1},
        "numbers": None,
        "value_bytes": {"min": 900, "mean": 1200.5, "max": 80_000},
        "distinct": {"estimate": 26, "low": 26, "high": 26, "exact": True},
        "top": [{"value": {"base64": "/9j/4A=="}, "count": 1}],
        "images": {
            "formats": {"jpeg": 25, "png": 1},
            "num_broken": 1,
            "width": {"min": 32, "mean": 40.0, "max": 64},
            "height": {"min": 32, "mean": 40.0, "max": 640},
        },
    },
    "label": {
        "kind": "int64",
        "dtype": "int64",
        "shape": [],
        "encoding": "list",
        "present": 24,
        "unset": 0,
        "num_records": 26,
        "absent": 2,
        "kinds": {"int64": 24},
        "lengths": {"min": 1, "mean": 1.0, "max": 1},
        "numbers": {
            "count": 24,
            "min": 0,
            "max": 99,
            "mean": 49.5,
            "std": 28.9,
            "num_zero": 1,
            "num_nan": 0,
            "num_inf": 0,
            "quantiles": QUANTILES,
        },
        "value_bytes": None,
        "distinct": {"estimate": 10, "low": 9, "high": 11, "exact": False},
        "top": [{"value": 3, "count": 9}, {"value": 1, "count": 5}],
        "images": None,
    },
    "score": {
        "kind": "float",
        "dtype": "float32",
        "shape": [None, 3],
        "encoding": "list",
        "present": 26,
        "unset": 1,
        "num_records": 26,
        "absent": 0,
        "kinds": {"float": 25, "unset": 1},
        "lengths": {"min": 3, "mean": 4.5, "max": 12},
        "numbers": {
            "count": 100,
            "min": "-inf",
            "max": 3.4e38,
            "mean": "nan",
            "std": "nan",
            "num_zero": 1,
            "num_nan": 2,
            "num_inf": 1,
            "quantiles": {**QUANTILES, "0.01": "-inf"},
        },
        "value_bytes": None,
        "distinct": {"estimate": 97, "low": 97, "high": 97, "exact": True},
        "top": [{"value": "nan", "count": 2}],
        "images": None,
    },
}

DRIFT = [
    {
        "feature": "score",
        "kind": "dtype",
        "path": shard_json(3)["path"],
        "shard_index": 3,
        "detail": "int64 here, float everywhere else",
        "expected": "float",
        "found": "int64",
    }
]


PLAN = plan_json([7, 7, 6, 6], PlanOptions(world=3, loader_workers=2, batch_size=4))

GATES = [
    {"gate": "expect-records", "passed": True, "detail": "26 records, as expected"},
    {"gate": "max-imbalance", "passed": False, "detail": "1.08 is more than 1.05"},
]


def set_json(shards: Sequence[dict[str, Any]], **sections: Any) -> dict[str, Any]:
    """One entry of ``sets``."""
    return {
        "name": "train",
        "directory": "/data",
        "files": f"train.tfrecord-*-of-{len(shards):05d}",
        "has_manifest": True,
        "num_shards": len(shards),
        "num_records": sum(shard["num_records"] for shard in shards),
        "payload_bytes": sum(shard["payload_bytes"] for shard in shards),
        "file_bytes": sum(shard["file_bytes"] for shard in shards),
        "compressions": sorted({shard["compression"] for shard in shards}),
        "balance": balance_json(shards),
        "kinds": {"Example": 26},
        "kinds_sampled": True,
        "labels": {},
        "shuffle": {},
        "features": {},
        "drift": [],
        "plan": {},
        **sections,
    }


def report_json(
    shards: Sequence[dict[str, Any]] | None = None,
    sets: Sequence[dict[str, Any]] | None = None,
    **sections: Any,
) -> dict[str, Any]:
    """A whole report; sections of a set (``labels``, ``plan``, ...) go to the only one."""
    if shards is None:
        shards = [shard_json(index) for index in range(4)]
    of_set = {
        key: sections.pop(key)
        for key in ("labels", "shuffle", "features", "drift", "plan", "kinds", "kinds_sampled")
        if key in sections
    }
    if sets is None:
        sets = [set_json(shards, **of_set)]
    only = sets[0] if len(sets) == 1 else {}
    defects = sections.pop("defects", [])
    num_records = sum(shard["num_records"] for shard in shards)
    return {
        "schema": "shardwriter.stats/1",
        "check": "crc",
        "verdict": "DAMAGED: 1 defect" if defects else f"OK: {num_records:,} records",
        "num_records": num_records,
        "num_shards": len(shards),
        "payload_bytes": sum(shard["payload_bytes"] for shard in shards),
        "file_bytes": sum(shard["file_bytes"] for shard in shards),
        "record_bytes": SIZES,
        "balance": balance_json(shards),
        "shards": list(shards),
        "defects": defects,
        "num_defects": len(defects),
        "notes": [],
        "features": only.get("features", {}),
        "labels": only.get("labels", {}),
        "plan": only.get("plan", {}),
        "sets": list(sets),
        "gates": [],
        **sections,
    }


def full_report() -> dict[str, Any]:
    """A report with all sections."""
    return report_json(
        labels=LABELS,
        shuffle=SHUFFLE,
        features=FEATURES,
        drift=DRIFT,
        plan=PLAN,
        gates=GATES,
        defects=[defect_json(), defect_json(kind="missing-shard", offset=None, num_lost=None)],
        notes=["train.tfrecord-*-of-00004 was not assigned round-robin"],
    )


# -- at random -------------------------------------------------------------------------------------

texts = st.text(min_size=1, max_size=60) | st.sampled_from(
    [
        "a" * 300,
        "画像" * 50,
        "[red]x[/red]",
        "\x1b[31mred\x1b[0m",
        "a\tb\nc\rd\x07\x08",
        "\u202eevil",
        "\x9b31m",
        "e\u0301" * 40,
        "<script>alert(1)</script>",
        "👩‍👩‍👧" * 20,
        "\udcff",
    ]
)
counts = st.integers(0, 10**13)
numbers = (
    st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["nan", "inf", "-inf"])
)
maybe_counts = st.none() | counts


def _spans(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"min": values, "mean": values, "max": values})


number_stats = st.fixed_dictionaries(
    {
        "count": counts,
        "min": numbers,
        "max": numbers,
        "mean": numbers,
        "std": numbers,
        "num_zero": counts,
        "num_nan": counts,
        "num_inf": counts,
        "quantiles": st.fixed_dictionaries(dict.fromkeys(QUANTILES, numbers)),
    }
)
features = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["int64", "float", "bytes", None]),
        "dtype": st.sampled_from([None, "uint8", "float32"]),
        "shape": st.none() | st.lists(st.none() | counts, max_size=5),
        "encoding": st.sampled_from(["list", "raw", "image"]),
        "present": counts,
        "unset": st.just(0),
    },
    optional={
        "format": st.sampled_from(["jpeg", None]),
        "num_records": counts,
        "absent": counts,
        "kinds": st.dictionaries(st.sampled_from(["int64", "float", "bytes"]), counts),
        "lengths": _spans(counts),
        "numbers": st.none() | number_stats,
        "value_bytes": st.none() | _spans(counts),
        "distinct": st.fixed_dictionaries(
            {"estimate": counts, "low": counts, "high": counts, "exact": st.booleans()}
        ),
        "top": st.lists(
            st.fixed_dictionaries(
                {"value": texts | numbers | st.just({"base64": "AAECAw=="}), "count": counts}
            ),
            max_size=3,
        ),
        "images": st.none()
        | st.fixed_dictionaries(
            {
                "formats": st.dictionaries(st.sampled_from(["jpeg", "png"]), counts),
                "num_broken": counts,
                "width": _spans(counts),
                "height": _spans(counts),
            }
        ),
    },
)
labels = st.fixed_dictionaries(
    {
        "feature": texts,
        "counts": st.dictionaries(texts, counts, max_size=14),
        "source": st.sampled_from(["manifest", "records"]),
        "num_unlabelled": counts,
        "deviating": st.lists(
            st.fixed_dictionaries(
                {
                    "path": texts,
                    "shard_index": maybe_counts,
                    "label": texts,
                    "count": counts,
                    "expected": st.floats(0, 1e12),
                    "ratio": numbers,
                    "p_value": st.floats(0, 1),
                }
            ),
            max_size=3,
        ),
    }
)
drift = st.fixed_dictionaries(
    {
        "feature": texts,
        "kind": st.sampled_from(["missing", "dtype", "image-format"]),
        "path": texts,
        "shard_index": maybe_counts,
        "detail": texts,
        "expected": texts,
        "found": texts,
    }
)
defects = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["length-crc", "missing-shard", "something-new"]),
        "path": texts,
        "shard_index": maybe_counts,
        "record_index": maybe_counts,
        "global_index": maybe_counts,
        "offset": maybe_counts,
        "detail": texts,
        "num_lost": maybe_counts,
        "resync_offset": maybe_counts,
        "num_recoverable": counts,
    }
)


@st.composite
def reports(draw: st.DrawFn) -> dict[str, Any]:
    """Any report of the contract, with long, strange and hostile names."""
    sets: list[dict[str, Any]] = []
    shards: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 3))):
        mine = [
            shard_json(
                index,
                set=number,
                path=draw(texts),
                shard_index=draw(st.just(index) | st.none()),
                num_records=draw(counts),
                file_bytes=draw(counts),
                compression=draw(st.sampled_from(["none", "gzip", "zlib"])),
            )
            for index in range(draw(st.integers(0, 30)))
        ]
        shards += mine
        sets.append(
            set_json(
                mine,
                directory=draw(texts),
                files=draw(texts),
                labels=draw(st.just({}) | labels),
                shuffle={**SHUFFLE, "detail": draw(texts), "remedy": draw(st.none() | texts)},
                features=draw(st.dictionaries(texts, features, max_size=4)),
                drift=draw(st.lists(drift, max_size=3)),
                kinds=draw(st.dictionaries(texts, counts, max_size=3)),
            )
        )
    return report_json(
        shards,
        sets,
        defects=draw(st.lists(defects, max_size=3)),
        notes=draw(st.lists(texts, max_size=3)),
        gates=[
            {"gate": "baseline", "passed": draw(st.booleans()), "detail": detail}
            for detail in draw(st.lists(texts, max_size=2))
        ],
        verdict=draw(texts),
    )
