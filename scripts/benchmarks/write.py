"""Write datasets as whole commands, start-up included, and what else the commands do."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import (
    INPUTS,
    NUM_SHARDS,
    PNG_HEAD,
    Small,
    digest,
    make_floats,
    make_image_heads,
    make_input,
    make_once,
    make_photos,
    small_generator,
)
from benchmarks.measure import (
    Case,
    Contender,
    Results,
    Run,
    Turn,
    Work,
    empty_folder,
    run_timed,
    size_of,
)
from benchmarks.worker import Step

# -- write -----------------------------------------------------------------------------------------

GZIP = "-gzip"
DATASETS = {"floats": "Floats", "tokens": "Tokens", "masks": "Masks"}
"""What our command is given, where that is not the input's path."""

_TENSORFLOW = ("tensorflow", "imagesize")
_WRITE_CASES = (*INPUTS, f"tokens{GZIP}", f"table{GZIP}")
PEERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "tensorflow": (_TENSORFLOW, _WRITE_CASES),
    "tensorflow-pool": (_TENSORFLOW, _WRITE_CASES),
    "tensorflow-data": (_TENSORFLOW, ("masks",)),
    "tfrecord": (("tfrecord", "imagesize"), ("images",)),
    "tfrecord-pool": (("tfrecord", "imagesize"), ("images",)),
    "mds": (("streaming",), ("floats", "table")),
    "mds-pool": (("streaming",), ("floats", "table")),
    "webdataset": (("webdataset",), ("tokens",)),
    "webdataset-pool": (("webdataset",), ("tokens",)),
    "litdata": (("litdata", "cv2"), ("masks",)),
}
"""By peer: the modules that it needs, and its cases.

``-pool``: as many processes as ours, each with shards of its own; LitData has a pool of its own.
``-data``: the threads of tf.data.
"""


def make_write(case: Case) -> None:
    """Make the input of a case."""
    name = case.name.removesuffix(GZIP)
    case.count = max(1, int(INPUTS[name][2] * case.size))
    case.source = make_input(case.folder / "inputs", name, case.count)
    case.num_bytes = size_of(case.source)


def write_contenders(case: Case) -> list[Contender]:
    """Return ours, in a pool and in one process, and the peers."""
    name = case.name.removesuffix(GZIP)
    modules = ("cv2",) if name == "masks" else ()
    ending = ".tfrecord.gz" if case.name.endswith(GZIP) else ".tfrecord"

    def ours(*engine: str) -> Callable[[Turn], Run]:
        def measure(turn: Turn) -> Run:
            source = f"benchmarks.data:{DATASETS[name]}" if name in DATASETS else case.source
            return turn.shardwriter("write", source, turn.folder / f"x@16{ending}", *engine)

        return measure

    found = [
        Contender(
            "shardwriter", ours("-j", str(case.workers)), modules, check_shards, is_ours=True
        ),
        Contender(
            "shardwriter-serial", ours("--engine", "serial"), modules, check_shards, is_ours=True
        ),
    ]
    for peer, (needed, cases) in PEERS.items():
        if case.name in cases:
            found.append(
                Contender(peer, partial(run_peer, peer), needed, check_of(peer, case.name))
            )
    return found


def run_peer(peer: str, turn: Turn) -> Run:
    """Write with a peer."""
    package, _, way = peer.partition("-")
    case, workers = turn.case, turn.case.workers
    processes = workers if way == "pool" else 0
    if package == "litdata":
        words = turn.call_words(
            "benchmarks.peers:write_litdata_parts", case.source, turn.folder, workers
        )
    elif package == "tensorflow":
        name = case.name.removesuffix(GZIP) + ("-data" if way == "data" else "")
        words = turn.call_words(
            "benchmarks.peers_tensorflow:write",
            name,
            case.source,
            turn.folder,
            NUM_SHARDS,
            case.name.endswith(GZIP),
            processes=processes,
        )
    else:
        words = turn.call_words(
            "benchmarks.peers:write_format",
            package,
            case.name,
            case.source,
            turn.folder,
            NUM_SHARDS,
            processes=processes,
        )
    return turn.run(words)


def check_of(peer: str, case: str) -> Callable[[Turn, Path, Path], None]:
    """Return what checks a peer's files against ours."""
    package = peer.partition("-")[0]
    if package != "tensorflow":
        return partial(check_digest, package)
    if case.endswith(GZIP):
        return check_records
    return check_resized if case == "masks" else check_shards


# -- checks ----------------------------------------------------------------------------------------

MAX_MEAN_DIFFERENCE, MAX_DIFFERENCE = 1, 8  # of 255, between two libraries' resizing


def check_shards(_turn: Turn, ours: Path, theirs: Path) -> None:
    """Stop the benchmark unless all shards are the same bytes."""
    pairs = shard_pairs(ours, theirs)
    different = [a.name for a, b in pairs if a.read_bytes() != b.read_bytes()]
    if different:
        raise SystemExit(f"{theirs.name}: other bytes than ours: {different}")


def check_records(_turn: Turn, ours: Path, theirs: Path) -> None:
    """Stop the benchmark unless shards hold the same records, however they are compressed."""
    import shardwriter as sw

    for a, b in shard_pairs(ours, theirs):
        if list(sw.read_records(a)) != list(sw.read_records(b)):
            raise SystemExit(f"{theirs.name}: other records than ours in {b.name}")


def check_digest(package: str, turn: Turn, ours: Path, theirs: Path) -> None:
    """Stop the benchmark unless another format holds the same records."""
    found = turn.finish(turn.call_words("benchmarks.peers:print_digest", package, theirs))
    if found.split()[-1] != our_digest(ours):
        raise SystemExit(f"{theirs.name}: other records than ours\n{found}")


def check_resized(_turn: Turn, ours: Path, theirs: Path) -> None:
    """Stop the benchmark unless masks are the same bytes, and images nearly.

    Two libraries' resizing rounds in different places.
    """
    for a, b in shard_pairs(ours, theirs):
        for mine, other in zip(decoded(a), decoded(b), strict=True):
            if mine.keys() != other.keys() or mine["mask"] != other["mask"]:
                raise SystemExit(f"{theirs.name}: other records than ours in {b.name}")
            pixels = [
                np.frombuffer(record["image"][0], np.uint8).astype(np.int16)
                for record in (mine, other)
            ]
            difference = np.abs(pixels[0] - pixels[1])
            if difference.mean() > MAX_MEAN_DIFFERENCE or difference.max() > MAX_DIFFERENCE:
                raise SystemExit(f"{theirs.name}: other images than ours in {b.name}")


def shard_pairs(ours: Path, theirs: Path) -> list[tuple[Path, Path]]:
    """Return the shards of two folders, which must have the same names."""
    names, others = (
        {path.name for path in folder.glob("*.tfrecord*")} for folder in (ours, theirs)
    )
    if not names or names != others:
        raise SystemExit(f"{theirs.name}: other files than ours: {sorted(names ^ others)}")
    return [(ours / name, theirs / name) for name in sorted(names)]


def decoded(path: Path) -> list[dict[str, Any]]:
    """Return the decoded records of a shard."""
    import shardwriter as sw

    return [dict(sw.decode_example(record)) for record in sw.read_records(path)]


def our_digest(folder: Path) -> str:
    """Return the digest of our records, to be compared with that of another format."""
    return digest(record for path in sorted(folder.glob("*.tfrecord")) for record in decoded(path))


# -- write-photos ----------------------------------------------------------------------------------


def make_photo_files(case: Case) -> None:
    """Make the photos."""
    settings = case.settings
    case.count = max(1, int(300 * case.size))
    name = f"photos-{case.count}-{settings['width']}-{settings['height']}"
    folder = case.folder / "inputs" / name
    case.source = folder / "photos"
    shape = settings["width"], settings["height"]
    make_once(folder, lambda: make_photos(case.source, case.count, *shape))
    case.num_bytes = size_of(case.source)


def photo_contenders(case: Case) -> list[Contender]:
    """Return ours, and loops of Pillow."""

    def ours(turn: Turn) -> Run:
        words = ["--max-side", case.settings["max_side"], "-j", case.workers]
        return turn.shardwriter("write", case.source, turn.folder / "x@16", *words)

    def pillow(way: str, turn: Turn) -> Run:
        words = (case.source, turn.folder, case.settings["max_side"], case.workers)
        return turn.run(turn.call_words("benchmarks.peers:write_pillow", way, *words))

    return [
        Contender("shardwriter", ours, ("PIL",), is_ours=True),
        *(
            Contender(f"pillow-{way}", partial(pillow, way), ("PIL",))
            for way in ("whole", "draft", "pool")
        ),
    ]


def photo_notes(case: Case, results: Results, _earlier: dict[str, Results]) -> dict[str, float]:
    """Return the least PSNR of our pictures against those of ``pillow-whole``, in dB."""
    import io
    import math

    from PIL import Image

    import shardwriter as sw

    out = case.folder / "out"
    if "pillow-whole" not in results:
        return {}
    worst = math.inf
    theirs = sw.read_records(out / "pillow-whole" / "all.tfrecord")
    for ours, record in zip(sw.open(out / "shardwriter" / "x"), theirs, strict=True):
        peer = sw.decode_example(record)["image/encoded"][0]
        a, b = (
            np.asarray(Image.open(io.BytesIO(data)), float)
            for data in (ours["image/encoded"], peer)
        )
        error = float(((a - b) ** 2).mean())
        worst = min(worst, 10 * math.log10(255**2 / error) if error else math.inf)
    return {"worst PSNR against pillow-whole, dB": worst}


# -- start and small-records: what the process pool costs ------------------------------------------

START_WORKERS = 8
SMALL_COUNTS = (1_000, 10_000, 100_000, 1_000_000)


def make_start(case: Case) -> None:
    """Set the number of records, one for each process."""
    case.count = START_WORKERS


def start_contenders(case: Case) -> list[Contender]:
    """Return a pool of 8, and one process."""

    def command(turn: Turn, *engine: str) -> Run:
        out = turn.folder / f"x@{START_WORKERS}"
        return turn.shardwriter("write", "benchmarks.data:small", out, *engine)

    def call(turn: Turn, workers: int | None) -> Run:
        words = ("sequence", START_WORKERS, START_WORKERS, turn.folder, workers)
        return turn.ask("benchmarks.write:write_steps", *words, step="write")

    def pool(turn: Turn) -> Run:
        if case.name == "command":
            return command(turn, "-j", str(START_WORKERS))
        return call(turn, START_WORKERS)

    def serial(turn: Turn) -> Run:
        return command(turn, "--engine", "serial") if case.name == "command" else call(turn, None)

    return [
        Contender("shardwriter", pool, check=check_shards, is_ours=True),
        Contender("shardwriter-serial", serial, check=check_shards, is_ours=True),
    ]


def start_notes(_case: Case, results: Results, _earlier: dict[str, Results]) -> dict[str, float]:
    """Return what the start of the pool costs; of calls also what the first one takes."""
    pool = results.get("shardwriter", {})
    found = {"first run of the pool, s": pool["first_wall_s"]} if pool else {}
    if pool and "shardwriter-serial" in results:
        found["start of the pool, s"] = pool["wall_s"] - results["shardwriter-serial"]["wall_s"]
    return found


def write_steps(
    source: str, count: int, num_shards: int, folder: str, workers: int | None
) -> dict[str, Step]:
    """Return a step that writes small records in this process or, with workers, in a pool."""
    import os

    import shardwriter as sw

    def before() -> None:
        empty_folder(Path(folder))
        os.sync()

    def run() -> None:
        data: Any = Small(count) if source == "sequence" else partial(small_generator, count)
        out = Path(folder) / f"x@{num_shards}"
        if workers is None:
            sw.write(data, out, run=sw.RunOptions(engine="serial"))
        else:
            sw.write(data, out, run=sw.RunOptions(engine="process"), workers=workers)

    return {"write": Step(run, before=before)}


def make_small(case: Case) -> None:
    """Set the number of records."""
    case.count = max(1, int(int(case.name.partition("-")[2]) * case.size))


def small_contenders(case: Case) -> list[Contender]:
    """Return a pool, and one process."""
    source = case.name.partition("-")[0]

    def measure(turn: Turn, workers: int | None) -> Run:
        words = (source, case.count, NUM_SHARDS, turn.folder, workers)
        return turn.ask("benchmarks.write:write_steps", *words, step="write")

    return [
        Contender(
            "shardwriter",
            lambda turn: measure(turn, case.workers),
            check=check_shards,
            is_ours=True,
        ),
        Contender(
            "shardwriter-serial", lambda turn: measure(turn, None), check=check_shards, is_ours=True
        ),
    ]


def small_notes(case: Case, results: Results, earlier: dict[str, Results]) -> dict[str, float]:
    """Return what an added record costs, compared with the case that has the fewest."""
    source = case.name.partition("-")[0]
    fewest = earlier.get(f"{source}-{SMALL_COUNTS[0]}")
    if fewest is None:
        return {}
    added = case.count - max(1, int(SMALL_COUNTS[0] * case.size))
    return {
        f"an added record, {name}, ns": (row["wall_s"] - fewest[name]["wall_s"]) / added * 1e9
        for name, row in results.items()
        if name in fewest
    }


# -- memory ----------------------------------------------------------------------------------------

MEMORY_CASES: dict[str, tuple[str, str, int]] = {
    "records": ("numbers", "x@16", 10_000_000),
    "one-record": ("one_record", "x@2", 1_900 * 1024 * 1024),
    "classes": ("", "x@16", 100_000),
    "shards": ("small", "x@{}", 1_000_000),
}
"""By case: the dataset, the output and the number of items (of bytes for ``one-record``)."""


def make_memory(case: Case) -> None:
    """Make the folder of ``classes``; the other cases have no input."""
    case.count = max(1, int(MEMORY_CASES[case.name][2] * case.size))
    if case.name == "classes":
        folder = case.folder / "inputs" / f"classes-{case.count}"
        case.source = folder / "classes"
        shape = (case.count, case.count, len(PNG_HEAD) + 32)
        make_once(folder, lambda: make_image_heads(case.source, *shape))


def memory_contenders(case: Case) -> list[Contender]:
    """Return a pool, and one process; what they write is proven."""
    name, out, _ = MEMORY_CASES[case.name]

    def measure(turn: Turn, *engine: str) -> Run:
        source = f"benchmarks.data:{name}" if name else case.source
        place = turn.folder / out.format(max(1, case.count // 10))
        run = turn.shardwriter("write", source, place, *engine)
        turn.finish(turn.program("-m", "shardwriter", "verify", place))
        shutil.rmtree(turn.folder)
        return run

    return [
        Contender("shardwriter", lambda turn: measure(turn, "-j", str(case.workers)), is_ours=True),
        Contender(
            "shardwriter-serial", lambda turn: measure(turn, "--engine", "serial"), is_ours=True
        ),
    ]


# -- resume ----------------------------------------------------------------------------------------

RESUME_IMAGE_BYTES, VECTOR_BYTES = 100_000, 4 * 768
LOOK_EVERY_S = 0.002


def make_resume(case: Case) -> None:
    """Make images, or vectors, of 2 GB."""
    total = int(2e9 * case.size)
    size = RESUME_IMAGE_BYTES if case.name == "images" else VECTOR_BYTES
    case.count, case.num_bytes = max(1, total // size), total
    folder = case.folder / "inputs" / f"resume-{case.name}-{case.count}"
    case.source = folder / case.name

    def make() -> None:
        if case.name == "images":
            make_image_heads(case.source, case.count, 10, RESUME_IMAGE_BYTES)
        else:
            make_floats(case.source, case.count)

    make_once(folder, make)


def resume_contenders(case: Case) -> list[Contender]:
    """Return a whole run, and one that goes on with a run that was killed half-way."""

    def words(turn: Turn, *more: str) -> list[str]:
        source = case.source if case.name == "images" else "benchmarks.data:Floats"
        command = ["-m", "shardwriter", "write", source, turn.folder / "x@16"]
        return turn.program(*command, "-j", case.workers, *more)

    def whole(turn: Turn) -> Run:
        return turn.run(words(turn))

    def resumed(turn: Turn) -> Run:
        grown = run_killed(words(turn), turn, case.num_bytes // 2)
        run = run_timed(words(turn, "--resume"), turn.environment, case.folder)
        saved = re.search(r"([\d,]+) records \(([\d,]+) bytes\)", run.text)
        if saved is None:
            raise SystemExit(f"the killed run saved nothing; use a larger --size\n{run.text}")
        again = grown - int(saved[2].replace(",", ""))
        run.extra["MB done again by a worker"] = again / case.workers / 1e6
        if turn.reference != turn.folder:
            check_shards(turn, turn.reference, turn.folder)
        return run

    return [
        Contender("shardwriter", whole, check=check_shards, is_ours=True),
        Contender("shardwriter-resumed", resumed, is_ours=True),
    ]


def run_killed(command: list[str], turn: Turn, stop_bytes: int) -> int:
    """Run a command, kill it, and return the bytes that were in the growing shards."""

    def grown_bytes() -> int:
        return sum(path.stat().st_size for path in turn.folder.glob(".x.partial/shard-*"))

    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=turn.environment,
        cwd=turn.case.folder,
    )
    while (found := grown_bytes()) < stop_bytes:
        if process.poll() is not None:
            raise SystemExit("the run ended before it could be killed; a larger --size helps")
        time.sleep(LOOK_EVERY_S)
    process.kill()
    process.wait()
    return max(found, grown_bytes())


# -- reshard ---------------------------------------------------------------------------------------

RESHARD_BYTES = 800_000_000


def reshard_records(name: str, total_bytes: int) -> Any:
    """Yield records of random bytes; what is in them makes no difference to anybody."""
    rng = np.random.default_rng(0)
    pool = rng.bytes(8 << 20)
    done = 0
    while done < total_bytes:
        size = {"images": 100_000, "rows": int(rng.integers(1000, 3000)), "small": 100}[name]
        begin = int(rng.integers(len(pool) - size))
        yield pool[begin : begin + size]
        done += size


def make_reshard(case: Case) -> None:
    """Write the dataset that is copied, of 16 shards."""
    import shardwriter as sw

    case.num_bytes = int(RESHARD_BYTES * case.size)
    case.source = case.folder / "inputs" / f"reshard-{case.name}-{case.num_bytes}"
    make_once(
        case.source,
        lambda: sw.write(reshard_records(case.name, case.num_bytes), case.source / "x@16"),
    )
    case.count = sw.load_manifest(case.source / "x").num_records


def reshard_contenders(case: Case) -> list[Contender]:
    """Return copies from 16 to 7 shards and back, and copies by ``cp``."""

    def ours(turn: Turn) -> Run:
        options = ["-j", case.workers, "--json"]
        there, back = turn.folder / "there", turn.folder / "back"
        runs = [
            turn.shardwriter("reshard", case.source / "x", there / "x@7", *options),
            turn.shardwriter("reshard", there / "x", back / "x@16", *options),
        ]
        check_shards(turn, case.source, back)
        inside = [float(re.findall(r'"elapsed_s": ([\d.e-]+)', run.text)[-1]) for run in runs]
        extra = {
            "16 to 7, s": runs[0].wall_s,
            "7 to 16, s": runs[1].wall_s,
            "without start-up, s": sum(inside) / 2,
        }
        peaks = [run.peak_mb for run in runs if run.peak_mb is not None]
        wall_s, cpu_s = (sum(getattr(r, key) for r in runs) / 2 for key in ("wall_s", "cpu_s"))
        shutil.rmtree(turn.folder)
        return Run(wall_s, cpu_s, max(peaks, default=None), extra=extra)

    def copy(then: str, turn: Turn) -> Run:
        shards = sorted(case.source.glob("x.tfrecord-*"))
        run = turn.run(["cp", *map(str, shards), str(turn.folder)])
        if then:
            paths = [str(turn.folder / path.name) for path in shards]
            more = run_timed([then, *paths], turn.environment, case.folder, sync=False)
            run.wall_s, run.cpu_s = run.wall_s + more.wall_s, run.cpu_s + more.cpu_s
        shutil.rmtree(turn.folder)
        return run

    return [
        Contender("shardwriter", ours, is_ours=True),
        Contender("cp", partial(copy, "")),
        Contender("cp-and-sync", partial(copy, "sync")),
    ]


# -- stats -----------------------------------------------------------------------------------------


def make_stats(case: Case) -> None:
    """Write images as shards, which are then in the page cache."""
    import shardwriter as sw

    case.count = max(1, int(INPUTS["images"][2] * case.size))
    images = make_input(case.folder / "inputs", "images", case.count)
    case.source = case.folder / "inputs" / f"stats-{case.count}"
    make_once(case.source, lambda: sw.write(images, case.source / "x@16"))
    case.num_bytes = sum(path.stat().st_size for path in case.source.glob("x.tfrecord-*"))


def stats_contenders(case: Case) -> list[Contender]:
    """Return the command, and a call in a process that is up."""

    def command(turn: Turn) -> Run:
        return turn.shardwriter("stats", case.source / "x")

    def call(turn: Turn) -> Run:
        return turn.ask("benchmarks.write:stats_steps", case.source / "x", step="stats")

    return [
        Contender("shardwriter", command, is_ours=True),
        Contender("shardwriter-call", call, is_ours=True),
    ]


def stats_steps(path: str) -> dict[str, Step]:
    """Return a step that proves shards."""
    import shardwriter as sw

    def run() -> None:
        report = sw.stats(path)
        if report.num_defects:
            raise SystemExit(report.verdict)

    return {"stats": Step(run)}


def stats_notes(case: Case, results: Results, _earlier: dict[str, Results]) -> dict[str, float]:
    """Return how much is proven in a second."""
    return {f"{name}, GB/s": case.num_bytes / row["wall_s"] / 1e9 for name, row in results.items()}


WORKS = [
    Work(
        "write",
        "write an input into 16 shards, as a whole command; bytes or records are compared",
        _WRITE_CASES,
        make_write,
        write_contenders,
    ),
    Work(
        "write-photos",
        "write JPEG photos that are made smaller (--max-side), as a whole command",
        ("all",),
        make_photo_files,
        photo_contenders,
        settings={"width": 1600, "height": 1200, "max_side": 256},
        notes=photo_notes,
    ),
    Work(
        "start",
        "write 8 tiny records with 8 processes: what it costs to start the pool",
        ("command", "call"),
        make_start,
        start_contenders,
        notes=start_notes,
    ),
    Work(
        "small-records",
        "write small records from a generator or a sequence: what the pool costs for each",
        tuple(f"{source}-{n}" for source in ("generator", "sequence") for n in SMALL_COUNTS),
        make_small,
        small_contenders,
        notes=small_notes,
    ),
    Work(
        "memory",
        "write 10 million records, one of 1.9 GiB, 100,000 classes or shards: the memory",
        tuple(MEMORY_CASES),
        make_memory,
        memory_contenders,
        repeats=0,
    ),
    Work(
        "resume",
        "write 2 GB with a run that is killed half-way and resumed, compared with a whole run",
        ("images", "vectors"),
        make_resume,
        resume_contenders,
    ),
    Work(
        "reshard",
        "copy 16 shards to 7 and back to 16; seconds are the mean of there and back",
        ("images", "rows", "small"),
        make_reshard,
        reshard_contenders,
    ),
    Work(
        "stats",
        "prove about 300 MB of images in shards with shard-stats",
        ("images",),
        make_stats,
        stats_contenders,
        notes=stats_notes,
    ),
]
