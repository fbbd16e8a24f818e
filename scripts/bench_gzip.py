"""Gzip shards, whole commands: shardwriter and the serial TensorFlow script, in turn.

    python scripts/bench_gzip.py [tokens] [table] [--repeat 3] [--scale 1] [--deflate NAME] [--json]

Prints medians, the ratio of medians, and the sizes of the files. Both sides write the same records
into as many shards (checked); TensorFlow's compressor is zlib at its default level. ``tokens`` are
20,000 records of 2,048 ids, the k-th of which is as frequent as 1 / (k + 3); ``table`` is that of
``bench_write.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from bench_write import COMMAND, HERE, NUM_SHARDS, make_table, timed

NUM_RECORDS, IDS_PER_RECORD, VOCABULARY = 20_000, 2_048, 50_257
TOKENS_VARIABLE = "BENCH_GZIP_TOKENS"


def make_tokens(path: Path, scale: float) -> Path:
    """Make an array int64[records, ids] of token ids."""
    rng = np.random.default_rng(1)
    shape = (int(NUM_RECORDS * scale), IDS_PER_RECORD)
    weights = np.cumsum(1 / (np.arange(VOCABULARY) + 3))
    ids = np.searchsorted(weights, rng.random(shape) * weights[-1])
    np.save(path, rng.permutation(VOCABULARY)[ids])
    return path


def tokens() -> Iterator[dict[str, Any]]:
    """Yield the items; the source that shardwriter is given."""
    for ids in np.load(os.environ[TOKENS_VARIABLE], mmap_mode="r"):
        yield {"ids": ids}


def compare(what: str, source: Path, work: Path, repeat: int, deflate: str) -> dict[str, Any]:
    """Time both sides in turn on the same input."""
    ours, theirs = work / "ours", work / "theirs"
    given = "bench_gzip:tokens" if what == "tokens" else str(source)
    peer = [sys.executable, str(HERE / "tensorflow_peers.py"), what, str(source)]
    runs: dict[str, list[float]] = {"shardwriter": [], "tensorflow": []}
    for _ in range(repeat):
        for folder in (ours, theirs):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        out = str(ours / f"x@{NUM_SHARDS}.tfrecord.gz")
        runs["shardwriter"].append(timed([*COMMAND, "write", given, out, "--deflate", deflate])[0])
        runs["tensorflow"].append(timed([*peer, str(theirs / "x"), str(NUM_SHARDS), "GZIP"])[0])
    sizes = check_same(ours, theirs)
    result = {f"{name}_s": statistics.median(times) for name, times in runs.items()}
    result |= {"shardwriter_mb": sizes[0] / 1e6, "tensorflow_mb": sizes[1] / 1e6}
    result["ratio"] = result["tensorflow_s"] / result["shardwriter_s"]
    return result


def check_same(ours: Path, theirs: Path) -> tuple[int, int]:
    """Stop unless all shards hold the same records; return the bytes of both sides' files."""
    from shardwriter.scan import scan_file

    names = sorted(path.name for path in theirs.iterdir())
    pairs = [(scan_file(str(ours / n)), scan_file(str(theirs / n))) for n in names]
    if not pairs or any(a.crc32c != b.crc32c or a.crc32c is None for a, b in pairs):
        raise SystemExit("the shards differ")
    return sum(a.file_bytes for a, _ in pairs), sum(b.file_bytes for _, b in pairs)


def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", help="tokens, table; both by default")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="times the number of items")
    parser.add_argument("--deflate", default="isal-2", help="isal-2 or zlib-6")
    parser.add_argument("--work", type=Path, help="folder for the files; temporary by default")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    wanted = options.what or ["tokens", "table"]
    results: dict[str, Any] = {}
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        work = Path(folder)
        for what in wanted:
            if what == "tokens":
                source = make_tokens(work / "tokens.npy", options.scale)
                os.environ[TOKENS_VARIABLE] = str(source)
            else:
                source = make_table(work / "table.csv", options.scale)
            results[what] = compare(what, source, work, options.repeat, options.deflate)
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for what, figures in results.items():
        print(what + ": " + ", ".join(f"{key} {value:.2f}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
