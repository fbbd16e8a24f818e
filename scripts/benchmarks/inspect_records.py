"""Encode records, find the statistics of features, and prove shards; compared with TensorFlow.

Everybody works in a process that has everything imported and open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import make_once
from benchmarks.measure import Case, Contender, Results, Run, Turn, Work
from benchmarks.worker import Step, package_name

TENSORFLOW = ("tensorflow",)


# -- encode ----------------------------------------------------------------------------------------

BATCH_ROWS = 1024
ENCODE_CASES = {
    "768-floats": 40,
    "150528-floats": 400,
    "mask": 150,
    "token-ids": 6,
    "image": 3.5,
    "columns": 10,
    "rows": 2,
}
"""By case: the least ratio that is the target."""


def encode_data(case: str) -> Any:
    """Return a record or, for ``columns`` and ``rows``, columns of 1,024 rows.

    Value ranges are as they are in practice.
    """
    rng = np.random.default_rng(0)
    if case == "768-floats":
        return {"x": rng.random(768, np.float32)}
    if case == "150528-floats":
        return {"x": rng.random((224, 224, 3), np.float32)}
    if case == "mask":
        return {"mask": rng.integers(0, 21, (512, 512)).astype(np.uint8)}
    if case == "token-ids":
        ids = np.exp(rng.random(2048) * np.log(50_257))
        return {"ids": np.minimum(ids, 50_256).astype(np.int32)}
    if case == "image":
        return {
            "image/encoded": rng.bytes(110_000),
            "image/height": 480,
            "image/width": 640,
            "image/format": "jpeg",
            "image/class/label": 281,
            "image/filename": "n02123045_1955.jpg",
            "image/class/text": "tabby, tabby cat",
        }
    return {
        "age": rng.integers(18, 90, BATCH_ROWS),
        "user_id": rng.integers(0, 1_000_000, BATCH_ROWS),
        "price": rng.random(BATCH_ROWS) * 100,
        "score": rng.random(BATCH_ROWS),
        "city": [f"city {n}" for n in rng.integers(0, 500, BATCH_ROWS)],
        "name": [f"customer-{n}" for n in rng.integers(0, 1_000_000, BATCH_ROWS)],
    }


def encode_rows(case: str) -> list[dict[str, Any]]:
    """Return the records of a case, one after the other."""
    data = encode_data(case)
    if case not in ("columns", "rows"):
        return [data]
    lists = [v.tolist() if isinstance(v, np.ndarray) else v for v in data.values()]
    return [dict(zip(data, values, strict=True)) for values in zip(*lists, strict=True)]


def encoding_step(encode: Callable[[], list[bytes]]) -> Step:
    """Return a step that encodes; its outcome is a digest of all bytes."""
    from hashlib import sha256

    def check() -> str:
        return sha256(b"".join(encode())).hexdigest()

    return Step(lambda: len(encode()), check)


def encode_steps(case: str) -> dict[str, Step]:
    """Return our encoder."""
    import shardwriter as sw

    if case == "columns":
        columns = encode_data(case)
        return {"encode": encoding_step(lambda: list(sw.encode_columns(columns)))}
    rows = encode_rows(case)
    return {"encode": encoding_step(lambda: [sw.encode_example(row) for row in rows])}


def encode_tensorflow_steps(case: str) -> dict[str, Step]:
    """Return tf.train.Example, given arrays and given lists."""
    from tensorflow.core.example import example_pb2, feature_pb2

    def feature_of(value: Any) -> Any:
        values = [value] if isinstance(value, bytes | str | int | float) else value
        first = values[0]
        if isinstance(first, bytes | str):
            blobs = [v.encode() if isinstance(v, str) else v for v in values]
            return feature_pb2.Feature(bytes_list=feature_pb2.BytesList(value=blobs))
        if isinstance(first, float | np.floating):
            return feature_pb2.Feature(float_list=feature_pb2.FloatList(value=values))
        return feature_pb2.Feature(int64_list=feature_pb2.Int64List(value=values))

    def encode(row: dict[str, Any]) -> bytes:
        features = feature_pb2.Features(feature={k: feature_of(v) for k, v in row.items()})
        payload: bytes = example_pb2.Example(features=features).SerializeToString(
            deterministic=True
        )
        return payload

    def from_lists(row: dict[str, Any]) -> bytes:
        return encode({k: v.tolist() if hasattr(v, "tolist") else v for k, v in row.items()})

    rows = [
        {k: v.reshape(-1) if isinstance(v, np.ndarray) else v for k, v in row.items()}
        for row in encode_rows(case)
    ]
    lists = encode if case in ("columns", "rows") else from_lists  # these are lists already
    return {
        "arrays": encoding_step(lambda: [encode(row) for row in rows]),
        "lists": encoding_step(lambda: [lists(row) for row in rows]),
    }


def make_encode(case: Case) -> None:
    """Set the number of records that are encoded."""
    case.count = BATCH_ROWS if case.name in ("columns", "rows") else 1


def encode_contenders(_case: Case) -> list[Contender]:
    """Return our encoder, and TensorFlow's given arrays (``value=array``) and lists."""

    def measure(function: str, step: str, turn: Turn) -> Run:
        return turn.ask(f"benchmarks.inspect_records:{function}", turn.case.name, step=step)

    theirs = partial(measure, "encode_tensorflow_steps")
    return [
        Contender("shardwriter", partial(measure, "encode_steps", "encode"), is_ours=True),
        Contender("tensorflow", partial(theirs, "arrays"), TENSORFLOW),
        Contender("tensorflow-tolist", partial(theirs, "lists"), TENSORFLOW),
    ]


# -- features: all statistics of features ----------------------------------------------------------

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
FEATURES_CASES = {"table": 1.0, "table-single": 1.0, "embeddings": 0.25, "images": 0.05}
"""By case: the records, as a share of 20,000."""
NUM_ROWS = 20_000


def number_stats(values: np.ndarray) -> tuple[int, int]:
    """Find what `NumberStats` finds, with one sort."""
    flat = values.reshape(-1)
    ordered = np.sort(flat)
    places = (np.array(QUANTILES) * (ordered.size - 1)).astype(np.int64)
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    counts = np.diff(starts, append=ordered.size)
    top = np.argsort(-counts, kind="stable")[:10]
    found = (ordered[0], ordered[-1], flat.mean(dtype=np.float64), flat.std(dtype=np.float64))
    extra = (np.count_nonzero(flat == 0), np.count_nonzero(~np.isfinite(flat)))
    _ = (ordered[places], ordered[starts[top]], found, extra)
    return flat.size, starts.size


def blob_stats(values: list[bytes]) -> tuple[int, int]:
    """Find what `BlobStats` finds of short values."""
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    counts = Counter(values)
    _ = (sizes.min(), sizes.max(), sizes.mean(), counts.most_common(10))
    return len(values), len(counts)


def parse_batches(
    path: Path, spec: dict[str, Any], *, single: bool = False
) -> dict[str, tuple[int, int]]:
    """Run the peer over records of numbers and short strings; ``single`` parses one at a time."""
    import tensorflow as tf

    data = tf.data.TFRecordDataset(str(path))
    if single:
        data = data.map(lambda row: tf.io.parse_single_example(row, spec), tf.data.AUTOTUNE)
        data = data.batch(BATCH_ROWS)
    else:
        data = data.batch(BATCH_ROWS)
        data = data.map(lambda batch: tf.io.parse_example(batch, spec), tf.data.AUTOTUNE)
    found: dict[str, list[np.ndarray]] = {name: [] for name in spec}
    for batch in data.prefetch(tf.data.AUTOTUNE).as_numpy_iterator():
        for name, values in batch.items():
            found[name].append(values)
    joined = {name: np.concatenate(values) for name, values in found.items()}
    return {
        name: blob_stats(values.reshape(-1).tolist())
        if values.dtype == object
        else number_stats(values)
        for name, values in joined.items()
    }


def parse_images(path: Path) -> dict[str, tuple[int, int]]:
    """Run the peer over images: sizes, hashes and shapes by TensorFlow, without decoding."""
    import tensorflow as tf

    spec = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }

    def measure(payload: Any) -> Any:
        row = tf.io.parse_single_example(payload, spec)
        image = row["image"]
        hashed = tf.strings.to_hash_bucket_fast(image, 1 << 62)
        shape = tf.io.extract_jpeg_shape(image)
        return tf.strings.length(image), hashed, shape, tf.strings.substr(image, 0, 3), row["label"]

    data = tf.data.TFRecordDataset(str(path)).map(measure, tf.data.AUTOTUNE).batch(BATCH_ROWS)
    columns = list(zip(*data.prefetch(tf.data.AUTOTUNE).as_numpy_iterator(), strict=True))
    sizes, hashes, shapes, heads, labels = map(np.concatenate, columns)
    _ = (sizes.min(), sizes.max(), sizes.mean(), shapes.min(0), shapes.max(0), shapes.mean(0))
    _ = Counter(heads.tolist())
    return {"image": (sizes.size, np.unique(hashes).size), "label": number_stats(labels)}


def table_columns(num_rows: int) -> dict[str, list[Any]]:
    """Return 20 features: 8 floats, 7 integers, 5 texts, as tables have them."""
    rng = np.random.default_rng(0)
    columns: dict[str, list[Any]] = {}
    for i in range(8):
        columns[f"float_{i}"] = (rng.normal(size=num_rows) * 10**i).astype(np.float32).tolist()
    for i, limit in enumerate((2, 10, 90, 1000, 50_000, 10**6, 10**12)):
        columns[f"int_{i}"] = rng.integers(0, limit, num_rows).tolist()
    for i, limit in enumerate((2, 10, 500, 5_000, 10**6)):
        columns[f"text_{i}"] = [f"value {n}" for n in rng.integers(0, limit, num_rows)]
    return columns


def feature_records(case: str, num_rows: int) -> Iterator[dict[str, Any]]:
    """Yield the records of a case."""
    if case.startswith("table"):
        columns = table_columns(num_rows)
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))
    elif case == "embeddings":
        rng = np.random.default_rng(1)
        for _ in range(num_rows):
            x = rng.normal(size=768).astype(np.float32)
            yield {"x": x, "label": int(rng.integers(1000))}
    else:
        rng = np.random.default_rng(2)
        images = [jpeg_of_noise(rng) for _ in range(50)]
        for i in range(num_rows):
            yield {"image": images[i % 50] + b"%08d" % i, "label": int(rng.integers(1000))}


def jpeg_of_noise(rng: np.random.Generator) -> bytes:
    """Return a JPEG of about 110 kB."""
    import io

    from PIL import Image

    file = io.BytesIO()
    pixels = rng.integers(0, 256, (316, 316, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(file, "JPEG", quality=94)
    return file.getvalue()


def make_features(case: Case) -> None:
    """Write the records as one shard."""
    import shardwriter as sw

    case.count = max(1, int(NUM_ROWS * FEATURES_CASES[case.name] * case.size))
    name = case.name.removesuffix("-single")
    folder = case.folder / "inputs" / f"features-{name}-{case.count}"
    case.source = folder / "records.tfrecord"

    def make() -> None:
        with sw.TFRecordWriter(case.source) as writer:
            for row in feature_records(case.name, case.count):
                writer.write(sw.encode_example(row))

    make_once(folder, make)
    case.num_bytes = case.source.stat().st_size


def features_steps(case: str, path: str) -> dict[str, Step]:
    """Return ours, of one thread; the outcome is counts, and the bounds of distinct values."""
    import shardwriter as sw

    PayloadStats = package_name("PayloadStats")
    batch_rows = 16 if case == "images" else BATCH_ROWS

    def report() -> dict[str, Any]:
        stats = PayloadStats(features=True, label=None)
        records = sw.read_records(path)
        while batch := list(islice(records, batch_rows)):
            stats.add(batch)
        assert stats.features is not None
        return stats.features.to_json()

    def check() -> dict[str, list[int]]:
        found = {}
        for name, entry in report().items():
            count = entry["numbers"]["count"] if entry["numbers"] else entry["present"]
            found[name] = [count, entry["distinct"]["low"], entry["distinct"]["high"]]
        return found

    return {"features": Step(lambda: len(report()), check)}


def features_tensorflow_steps(case: str, path: str) -> dict[str, Step]:
    """Return a tf.data loop with NumPy; the outcome is counts and distinct values.

    It parses batches of 1,024 (or one record at a time, as many do) with all threads that it wants,
    has all values in memory, and sorts each feature once: that gives quantiles and distinct values
    together. Bytes are counted with a Counter; images are measured and hashed by TensorFlow.
    """
    import tensorflow as tf

    place = Path(path)
    if case == "images":
        run = partial(parse_images, place)
    else:
        kinds = {
            "float": tf.io.FixedLenFeature([], tf.float32),
            "int": tf.io.FixedLenFeature([], tf.int64),
            "text": tf.io.FixedLenFeature([], tf.string),
        }
        if case == "embeddings":
            spec = {"x": tf.io.FixedLenFeature([768], tf.float32), "label": kinds["int"]}
        else:
            names = [f"{kind}_{i}" for kind, n in TABLE_FEATURES.items() for i in range(n)]
            spec = {name: kinds[name.partition("_")[0]] for name in names}
        run = partial(parse_batches, place, spec, single=case == "table-single")
    return {"features": Step(lambda: len(run()), run)}


TABLE_FEATURES = {"float": 8, "int": 7, "text": 5}


def same_features(ours: dict[str, list[int]], theirs: dict[str, list[int]]) -> bool:
    """Return whether counts are equal, and distinct values as near as the bounds promise."""
    for name, (count, *distinct) in theirs.items():
        own_count, low, high = ours[name]
        if len(distinct) == 2:  # another checkout has bounds, too, and may estimate otherwise
            if low > distinct[1] or distinct[0] > high:
                return False
        # 95 of 100 are inside the bounds; twice as far is as good as certain.
        elif not 2 * low - high <= distinct[0] <= 2 * high - low:
            return False
        if count != own_count:
            return False
    return True


def features_contenders(_case: Case) -> list[Contender]:
    """Return ours, and a tf.data loop that finds the same."""

    def measure(function: str, turn: Turn) -> Run:
        case = turn.case
        name = f"benchmarks.inspect_records:{function}"
        return turn.ask(name, case.name, case.source, step="features")

    return [
        Contender("shardwriter", partial(measure, "features_steps"), is_ours=True),
        Contender("tensorflow", partial(measure, "features_tensorflow_steps"), TENSORFLOW),
    ]


# -- prove: both checksums of every record ---------------------------------------------------------

IMAGES_BYTES, IMAGE_BYTES = 300_000_000, (90_000, 130_000)
NUM_SMALL, SMALL_BYTES = 1_000_000, 100
PROVE_CASES = {"index": "images", "headers": "images", "images": "images", "small": "small"}
FORMS = (
    "reduce",
    "batch64-loop",
    "batch64-reduce",
    "batch1024-loop",
    "batch1024-reduce",
    "batch1024-reduce-parallel",
)


def make_prove(case: Case) -> None:
    """Write records of the sizes of photographs, or short ones, as a dataset of one shard."""
    import shardwriter as sw

    kind = PROVE_CASES[case.name]
    folder = case.folder / "inputs" / f"prove-{kind}-{case.size:g}"

    def images() -> Iterator[bytes]:
        rng = np.random.default_rng(1)
        left = int(IMAGES_BYTES * case.size)
        while left > 0:
            size = int(rng.integers(*IMAGE_BYTES))
            yield rng.bytes(size)
            left -= size

    def small() -> Iterator[bytes]:
        data = np.random.default_rng(2).bytes(int(NUM_SMALL * case.size) * SMALL_BYTES)
        for start in range(0, len(data), SMALL_BYTES):
            yield data[start : start + SMALL_BYTES]

    make_once(folder, lambda: sw.write(images if kind == "images" else small, folder / "x@1"))
    manifest = sw.load_manifest(folder / "x")
    case.source = folder / manifest.pattern.shard_file(0)
    case.count = manifest.num_records
    case.num_bytes = case.source.stat().st_size


def prove_steps(case: str, path: str) -> dict[str, Step]:
    """Return ours, which counts the records of a shard; damage stops the benchmark."""
    import shardwriter as sw

    def by_index() -> int:
        report = sw.stats(Path(path).parent / "x", check="none")
        if report.num_defects:
            raise SystemExit(report.verdict)
        return int(report.sizes.count)

    if case == "index":
        return {"count": Step(by_index)}
    scan_file = package_name("scan_file")
    options = package_name("ScanOptions")("length" if case == "headers" else "crc")

    def by_scan() -> int:
        scan = scan_file(path, options)
        if scan.num_defects:
            raise SystemExit(f"{path}: {scan.defects[0]}")
        return int(scan.num_records)

    return {"count": Step(by_scan)}


def prove_tensorflow_steps(path: str) -> dict[str, Step]:
    """Return ways to count records with one thread of tf.data, all of which prove them."""
    import tensorflow as tf

    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.autotune.enabled = False

    def dataset(batch: int, **reading: Any) -> Any:
        found = tf.data.TFRecordDataset([path], **reading)
        return (found.batch(batch) if batch else found).with_options(options)

    def by_reduce(batch: int, **reading: Any) -> int:
        def add(total: Any, some: Any) -> Any:
            return total + (tf.size(some, out_type=tf.int64) if batch else np.int64(1))

        return int(dataset(batch, **reading).reduce(np.int64(0), add).numpy())

    def by_loop(batch: int, **reading: Any) -> int:
        return sum(int(some.shape[0]) for some in dataset(batch, **reading))

    large = {"buffer_size": 8 << 20}
    forms = [
        partial(by_reduce, 0),
        partial(by_loop, 64),
        partial(by_reduce, 64, buffer_size=1 << 20),
        partial(by_loop, 1024),
        partial(by_reduce, 1024, **large),
        partial(by_reduce, 1024, num_parallel_reads=2, **large),
    ]
    return {name: Step(form) for name, form in zip(FORMS, forms, strict=True)}


def prove_contenders(_case: Case) -> list[Contender]:
    """Return ours and the forms of tf.data, all on one core."""

    def ours(turn: Turn) -> Run:
        case = turn.case
        function = "benchmarks.inspect_records:prove_steps"
        return turn.ask(function, case.name, case.source, step="count")

    def theirs(form: str, turn: Turn) -> Run:
        function = "benchmarks.inspect_records:prove_tensorflow_steps"
        return turn.ask(function, turn.case.source, step=form)

    return [
        Contender("shardwriter", ours, one_core=True, is_ours=True),
        *(
            Contender(f"tensorflow-{form}", partial(theirs, form), TENSORFLOW, one_core=True)
            for form in FORMS
        ),
    ]


def prove_notes(_case: Case, results: Results, _earlier: dict[str, Results]) -> dict[str, float]:
    """Return how many times ours the best form of tf.data takes."""
    ratios = {name: row["wall_ratio"] for name, row in results.items() if name[:6] == "tensor"}
    if not ratios:
        return {}
    best = min(ratios, key=lambda name: ratios[name])
    return {f"best form of tf.data, {best}, x": ratios[best]}


WORKS = [
    Work(
        "encode",
        "encode Examples of common shapes, with the same bytes",
        tuple(ENCODE_CASES),
        make_encode,
        encode_contenders,
        repeats=25,
        targets={case: ("tensorflow", least) for case, least in ENCODE_CASES.items()},
    ),
    Work(
        "features",
        "find all statistics of the features of a file; tf.data has all threads that it wants",
        tuple(FEATURES_CASES),
        make_features,
        features_contenders,
        targets=dict.fromkeys(FEATURES_CASES, ("tensorflow", 5.0)),
        same=same_features,
    ),
    Work(
        "prove",
        "count records by index or headers, or prove every CRC; tf.data proves them always",
        tuple(PROVE_CASES),
        make_prove,
        prove_contenders,
        notes=prove_notes,
    ),
]
