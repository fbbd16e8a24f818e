"""Run programs of ``shardwriter schema --code``, and print the values that each of them reads.

On stdin ``{name: {"program", "folder", "texts"}}``; ``texts`` are features that hold
bytes. On stdout ``{name: {"digests", "printed", "rows"}}``, digests in the order of the rows.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
from loader_values import digests

Row = dict[str, Any]


def tensorflow_rows(program: dict[str, Any], texts: list[str]) -> Iterator[Row]:
    for batch in program["batches"]():
        for at in range(next(iter(batch.values())).shape[0]):
            yield {name: _of_tensor(values[at], name in texts) for name, values in batch.items()}


def _of_tensor(value: Any, is_text: bool) -> Any:
    if hasattr(value, "to_tensor"):  # a ragged one, whose rows may be of one length
        value = value.to_tensor()
    array = value.numpy()
    if is_text:
        return array if isinstance(array, bytes) else array.tolist()
    return array


def torch_rows(program: dict[str, Any], texts: list[str]) -> Iterator[Row]:
    loader = program["batches"](num_workers=0)
    for batch in loader:
        lengths = {n: batch.pop(f"{n}/length") for n in program.get("PADDED", [])}
        for at in range(len(next(iter(batch.values())))):
            row = {name: _of_array(values[at]) for name, values in batch.items()}
            for name, length in lengths.items():
                row[name] = row[name][: int(length[at])]
            yield row


def grain_rows(program: dict[str, Any], texts: list[str]) -> Iterator[Row]:
    for batch in program["batches"]():
        lengths = {n: batch.pop(f"{n}/length") for n in program.get("PADDED", [])}
        for at in range(len(next(iter(batch.values())))):
            row = {name: values[at] for name, values in batch.items()}
            for name, length in lengths.items():
                row[name] = row[name][: int(length[at])]
            yield row


def _of_array(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value


def dali_rows(program: dict[str, Any], texts: list[str]) -> Iterator[Row]:
    reading = program["pipeline"]()
    reading.build()
    left = reading.epoch_size("reader")
    while left > 0:
        columns = dict(zip(program["FEATURES"], reading.run(), strict=True))
        for at in range(min(left, program["BATCH_SIZE"])):
            row = {name: np.asarray(values.at(at)) for name, values in columns.items()}
            for name in [name for name in row if f"{name}/shape" in row]:
                del row[f"{name}/shape"]  # read for the shape alone
            yield {n: v.tobytes() if n in texts else v for n, v in row.items()}
        left -= program["BATCH_SIZE"]


def answer(framework: str, one: dict[str, Any]) -> dict[str, Any]:
    os.chdir(one["folder"])
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            program = runpy.run_path(one["program"], run_name="__main__")
        rows = list(globals()[f"{framework}_rows"](program, one["texts"]))
    except Exception:
        return {"error": traceback.format_exc()}
    return {
        "digests": digests(rows),
        "printed": printed.getvalue(),
        "rows": [{n: repr(v)[:80] for n, v in sorted(row.items())} for row in rows[:3]],
    }


if __name__ == "__main__":
    framework = sys.argv[1]
    answers = {name: answer(framework, one) for name, one in json.load(sys.stdin).items()}
    json.dump(answers, sys.stdout)
