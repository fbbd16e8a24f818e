"""One run of the program, in a process of its own: by the API or by the command."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

import shardwriter as sw
from shardwriter.errors import ShardwriterError
from torture import data
from torture.draw import Attempt, Config
from torture.files import NAME

SCRIPTS: Final = Path(__file__).resolve().parents[1]
HANG_S: Final = 90.0


def command_line(config: Config, attempt: Attempt, source: str, folder: Path) -> list[str]:
    """Return the command line of an attempt."""
    out = str(folder / f"{NAME}@{config.num_shards}")
    if attempt.via == "api":
        what = {"config": asdict(config), "attempt": asdict(attempt), "source": source, "out": out}
        return [sys.executable, "-m", "torture.attempt", json.dumps(what)]
    command = [sys.executable, "-m", "shardwriter", "write", source, out]
    command += ["--compression", config.compression, "--engine", attempt.engine]
    command += ["--on-error", "skip"]
    if attempt.engine == "process":
        command += ["-j", str(attempt.workers)]
    for option, value in (
        ("--map", config.map and f"torture.data:{config.map}"),
        ("--filter", "torture.data:keep" if config.filter else None),
        ("--limit", config.limit),
        ("--label", config.label),
        ("--seed", config.shuffle),
    ):
        if value is not None:
            command += [option, str(value)]
    command += ["--shuffle"] if config.shuffle is not None else []
    command += ["--index"] if config.index else []
    return command + ([] if attempt.mode == "begin" else [f"--{attempt.mode}"])


def environment(config: Config, case: Path, *, sleeps: bool) -> dict[str, str]:
    """Return the environment of a run; TORTURE_CASE marks every process of it."""
    temporary = case / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(
        filter(None, [str(SCRIPTS), str(SCRIPTS.parent), os.getenv("PYTHONPATH")])
    )
    settings = {
        "seed": config.seed,
        "num_items": config.num_items,
        "item_bytes": config.item_bytes,
        "sleep_s": config.sleep_s if sleeps else 0,
    }
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {
        **inherited,
        "PYTHONFAULTHANDLER": "1",
        "PYTHONPATH": path,
        "PYTHONPYCACHEPREFIX": str(case.parent / "compiled"),
        "TMPDIR": str(temporary),
        "TORTURE_CASE": str(case),
        "TORTURE_DATA": json.dumps(settings),
    }


def main(text: str) -> None:
    """Be the program: write by the API, as the JSON says."""
    what = json.loads(text)
    config, attempt = what["config"], what["attempt"]
    try:
        sw.write(
            what["source"],
            what["out"],
            map=config["map"] and getattr(data, config["map"]),
            filter=data.keep if config["filter"] else None,
            limit=config["limit"],
            shuffle_seed=config["shuffle"],
            label=config["label"],
            compression=config["compression"],
            run=sw.RunOptions(
                overwrite=attempt["mode"] == "overwrite",
                resume=attempt["mode"] == "resume",
                on_error="skip",
                engine=attempt["engine"],
                workers=attempt["workers"],
                dali_index=config["index"],
                mark_s=config["mark_s"],
                checkpoint_bytes=config["checkpoint_bytes"],
            ),
        )
    except ShardwriterError as error:
        print(f"{type(error).__name__}: {error}; {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(sys.argv[1])
