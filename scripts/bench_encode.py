"""Time shardwriter's Example codec against tf.train.Example, on the shapes that people write.

Both sides run in turn and the medians are compared, so that a noisy machine disturbs both alike.
TensorFlow's lists are built from arrays (``value=array``) and, beside that, from ``.tolist()``.
First it is checked that both sides make the same bytes.

    python scripts/bench_encode.py [--rounds N] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from shardwriter.formats.example import encode_example
from shardwriter.formats.example_columns import encode_columns

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
from tensorflow.core.example import example_pb2, feature_pb2

BATCH_ROWS = 1024


class Case(NamedTuple):
    """One comparison; each of the functions writes ``num_rows`` records."""

    name: str
    target: float
    ours: Callable[[], list[bytes]]
    peer: Callable[[], list[bytes]]
    peer_from_lists: Callable[[], list[bytes]]
    num_rows: int = 1


def feature_of(value: Any) -> Any:
    """Make a tf.train.Feature the way that tutorials do."""
    values = [value] if isinstance(value, bytes | str | int | float) else value
    first = values[0]
    if isinstance(first, bytes | str):
        blobs = [v.encode() if isinstance(v, str) else v for v in values]
        return feature_pb2.Feature(bytes_list=feature_pb2.BytesList(value=blobs))
    if isinstance(first, float | np.floating):
        return feature_pb2.Feature(float_list=feature_pb2.FloatList(value=values))
    return feature_pb2.Feature(int64_list=feature_pb2.Int64List(value=values))


def peer_example(row: dict[str, Any]) -> bytes:
    """Write one record with protobuf."""
    features = feature_pb2.Features(feature={k: feature_of(v) for k, v in row.items()})
    payload: bytes = example_pb2.Example(features=features).SerializeToString(deterministic=True)
    return payload


def row_case(name: str, target: float, row: dict[str, Any]) -> Case:
    """Compare one record at a time."""
    flat = {k: v.reshape(-1) if isinstance(v, np.ndarray) else v for k, v in row.items()}
    return Case(
        name,
        target,
        lambda: [encode_example(row)],
        lambda: [peer_example(flat)],
        lambda: [
            peer_example({k: v.tolist() if hasattr(v, "tolist") else v for k, v in flat.items()})
        ],
    )


def make_cases() -> list[Case]:
    """Make the data: seeded, with value ranges as they are in practice."""
    rng = np.random.default_rng(0)
    zipf = np.minimum(np.exp(rng.random(2048) * np.log(50_257)), 50_256).astype(np.int32)
    image = {
        "image/encoded": rng.bytes(110_000),
        "image/height": 480,
        "image/width": 640,
        "image/format": "jpeg",
        "image/class/label": 281,
        "image/filename": "n02123045_1955.jpg",
        "image/class/text": "tabby, tabby cat",
    }
    columns: dict[str, Any] = {
        "age": rng.integers(18, 90, BATCH_ROWS),
        "user_id": rng.integers(0, 1_000_000, BATCH_ROWS),
        "price": rng.random(BATCH_ROWS) * 100,
        "score": rng.random(BATCH_ROWS),
        "city": [f"city {n}" for n in rng.integers(0, 500, BATCH_ROWS)],
        "name": [f"customer-{n}" for n in rng.integers(0, 1_000_000, BATCH_ROWS)],
    }
    lists = [v.tolist() if isinstance(v, np.ndarray) else v for v in columns.values()]
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*lists, strict=True)]

    def peer_rows() -> list[bytes]:
        return [peer_example(row) for row in rows]

    return [
        row_case("768 float32", 40, {"x": rng.random(768, np.float32)}),
        row_case("150,528 float32", 400, {"x": rng.random((224, 224, 3), np.float32)}),
        row_case(
            "512x512 mask, uint8 < 21",
            150,
            {"mask": rng.integers(0, 21, (512, 512)).astype(np.uint8)},
        ),
        row_case("2,048 token ids, int32", 6, {"ids": zipf}),
        row_case("110 kB image, 7 features", 3.5, image),
        Case(
            "6 columns, 1,024 rows at once",
            10,
            lambda: encode_columns(columns),
            peer_rows,
            peer_rows,
            BATCH_ROWS,
        ),
        Case(
            "6 columns, row by row",
            2,
            lambda: [encode_example(row) for row in rows],
            peer_rows,
            peer_rows,
            BATCH_ROWS,
        ),
    ]


def time_s(function: Callable[[], list[bytes]], calls: int) -> float:
    """Time one call, as the mean of a few."""
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - start) / calls


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Check that the bytes are the same, then time both sides in turn; medians, per record."""
    if not case.ours() == case.peer() == case.peer_from_lists():
        raise SystemExit(f"{case.name}: the bytes differ")
    sides = (case.ours, case.peer, case.peer_from_lists)
    # About 5 ms a turn, so that short functions are not lost in the clock.
    calls = [max(1, min(2000, int(0.005 / time_s(side, 3)))) for side in sides]
    times: list[list[float]] = [[], [], []]
    for _ in range(rounds):
        for side, num_calls, taken in zip(sides, calls, times, strict=True):
            taken.append(time_s(side, num_calls) / case.num_rows)
    ours, peer, from_lists = map(statistics.median, times)
    return {
        "case": case.name,
        "ours_us": round(ours * 1e6, 3),
        "tensorflow_us": round(peer * 1e6, 3),
        "tensorflow_tolist_us": round(from_lists * 1e6, 3),
        "speedup": round(peer / ours, 1),
        "speedup_tolist": round(from_lists / ours, 1),
        "target": case.target,
        "met": peer / ours >= case.target,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=25, help="turns of each side")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    results = [measure(case, options.rounds) for case in make_cases()]
    if options.json:
        print(json.dumps(results, indent=2))
    else:
        head = f"{'us per record':31}{'ours':>9}{'tf':>11}{'tf tolist':>11}"
        print(f"{head}{'speedup':>20}{'target':>8}")
        for r in results:
            print(
                f"{r['case']:31}{r['ours_us']:>9}{r['tensorflow_us']:>11}"
                f"{r['tensorflow_tolist_us']:>11}"
                f"{r['speedup']:>11}x{r['speedup_tolist']:>7}x{r['target']:>7}x"
                f"{'' if r['met'] else '  MISSED'}"
            )
    return 0 if all(r["met"] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
