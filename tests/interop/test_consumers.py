"""The real consumers: TensorFlow, Beam and the PyPI reader read ours, and we read theirs."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardwriter as sw

COUNT = 103


def features(count: int = COUNT) -> list[dict[str, Any]]:
    rng = np.random.default_rng(5)
    return [
        {
            "id": i,
            "name": f"récord {i}",
            "blob": rng.bytes(int(rng.integers(0, 300))),
            "vector": rng.normal(size=int(rng.integers(0, 9))).astype(np.float32),
            "tokens": rng.integers(-5, 70_000, int(rng.integers(0, 9))),
        }
        for i in range(count)
    ]


def shard_paths(folder: Path, name: str) -> list[str]:
    return sorted(str(p) for p in folder.glob(f"{name}.tfrecord-*-of-*") if p.suffix != ".idx")


def tf_records(tf: Any, paths: list[str], compression: str = "") -> list[bytes]:
    return [r.numpy() for r in tf.data.TFRecordDataset(paths, compression_type=compression)]


def test_tensorflow_reads_every_record_and_parses_it(tf: Any, tmp_path: Path) -> None:
    data = features()
    sw.write(data, tmp_path / "t@5")
    payloads = [p for path in shard_paths(tmp_path, "t") for p in tf_records(tf, [path])]
    assert len(payloads) == COUNT
    by_id = {}
    for payload in payloads:
        parsed = tf.train.Example.FromString(payload).features.feature
        by_id[parsed["id"].int64_list.value[0]] = parsed
        assert tf.train.Example.FromString(payload).SerializeToString(deterministic=True) == payload
    for item in data:
        parsed = by_id[item["id"]]
        assert parsed["name"].bytes_list.value[0].decode() == item["name"]
        assert parsed["blob"].bytes_list.value[0] == item["blob"]
        assert np.array_equal(np.float32(parsed["vector"].float_list.value), item["vector"])
        assert np.array_equal(parsed["tokens"].int64_list.value, item["tokens"])


@pytest.mark.parametrize("count", [COUNT, 15, 16, 17, 1])
def test_an_interleave_of_all_shards_gives_back_the_source_order(
    tf: Any, tmp_path: Path, count: int
) -> None:
    sw.write([{"id": i} for i in range(count)], tmp_path / "t@16")
    files = tf.data.Dataset.from_tensor_slices(shard_paths(tmp_path, "t"))
    records = files.interleave(
        tf.data.TFRecordDataset,
        cycle_length=16,
        block_length=1,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    ids = [int(sw.decode_example(r.numpy())["id"][0]) for r in records]
    assert ids == list(range(count))


def test_both_backends_write_the_same_bytes(tf: Any, tmp_path: Path) -> None:
    for backend in ("native", "tensorflow"):
        run = sw.RunOptions(backend=backend, dali_index=True)
        manifest = sw.write(features(), tmp_path / backend / "t@7", run=run)
        assert sw.verify(str(tmp_path / backend / "t")).num_defects == 0
    names = sorted(p.name for p in (tmp_path / "native").iterdir())
    assert names == sorted(p.name for p in (tmp_path / "tensorflow").iterdir())
    assert len(names) == 2 * manifest.num_shards + 2
    for name in names:
        ours = (tmp_path / "native" / name).read_bytes()
        assert ours == (tmp_path / "tensorflow" / name).read_bytes(), name


def test_the_writer_is_tensorflows_byte_for_byte(tf: Any, tmp_path: Path) -> None:
    payloads = [b"", b"x", bytes(100_000), b"\xff" * 33]
    writers = [sw.TFRecordWriter(tmp_path / "ours"), tf.io.TFRecordWriter(f"{tmp_path}/theirs")]
    for writer in writers:
        with writer:
            for payload in payloads:
                writer.write(payload)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_we_read_what_tensorflow_writes(tf: Any, tmp_path: Path, compression: str) -> None:
    payloads = [sw.encode_example(item) for item in features()]
    suffix = ".gz" if compression == "GZIP" else ""
    path = tmp_path / f"theirs.tfrecord{suffix}"
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for payload in payloads:
            writer.write(payload)
    assert list(sw.read_records(path)) == payloads
    report = sw.stats(str(path))
    assert report.num_defects == 0
    assert report.scans[0].compression == (compression.lower() or "none")


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB", ""])
@pytest.mark.parametrize("as_options", [False, True])
def test_code_written_for_tensorflows_writer_runs_unchanged(
    tf: Any, tmp_path: Path, compression: str, as_options: bool
) -> None:
    records = [b"first", b"", bytes(700_000), *(bytes([i]) * i for i in range(256))]
    options = tf.io.TFRecordOptions(compression_type=compression, compression_level=3)
    sizes = []
    for name, cls in (("ours", sw.TFRecordWriter), ("theirs", tf.io.TFRecordWriter)):
        path = str(tmp_path / name)
        with cls(path, options if as_options else compression) as writer:
            for record in records:
                writer.write(record)
            writer.flush()
        writer.close()
        for act in (writer.flush, lambda writer=writer: writer.write(b"x")):
            with pytest.raises((ValueError, tf.errors.FailedPreconditionError), match="closed"):
                act()
        found = tf.data.TFRecordDataset(path, compression)
        assert [record.numpy() for record in found] == records
        assert list(sw.read_records(path)) == records
        sizes.append(os.path.getsize(path))
    assert sizes[0] <= 1.1 * sizes[1]


def test_the_well_known_recipe_works_with_tensorflows_examples(tf: Any, tmp_path: Path) -> None:
    import contextlib2

    with contextlib2.ExitStack() as stack:
        writers = sw.open_sharded_writers(stack, tmp_path / "t@4")
        for i in range(10):
            feature = {"id": tf.train.Feature(int64_list=tf.train.Int64List(value=[i]))}
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writers[i % 4].write(example.SerializeToString())
    assert len(tf_records(tf, shard_paths(tmp_path, "t"))) == 10
    assert sw.verify(str(tmp_path / "t")).sizes.count == 10


def test_beam_reads_every_record(tmp_path: Path) -> None:
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
    payloads = [sw.encode_example(item) for item in features()]
    sw.write(payloads, tmp_path / "t@5")
    # A process of its own: Beam warns and starts threads when it is imported.
    code = (
        "import sys, apache_beam as beam\n"
        "from apache_beam.runners.portability.fn_api_runner import FnApiRunner\n"
        "with beam.Pipeline(runner=FnApiRunner()) as pipeline:\n"
        "    (pipeline | beam.io.ReadFromTFRecord(sys.argv[1] + '/t.tfrecord-*-of-*')\n"
        "     | beam.Map(bytes.hex) | beam.combiners.ToList()\n"
        "     | beam.Map(lambda found: open(sys.argv[2], 'w').write('\\n'.join(sorted(found)))))\n"
    )
    found = tmp_path / "found"
    subprocess.run([sys.executable, "-c", code, str(tmp_path), str(found)], check=True)
    assert found.read_text().split("\n") == sorted(p.hex() for p in payloads)


def in_a_process(code: str, *arguments: str) -> str:
    """Run Python code alone: the PyPI reader brings protos that clash with TensorFlow's."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


needs_pypi_reader = pytest.mark.skipif(
    importlib.util.find_spec("tfrecord") is None, reason="the PyPI reader is not installed"
)


@needs_pypi_reader
def test_the_pypi_loader_reads_through_our_idx(tmp_path: Path) -> None:
    sw.write(features(), tmp_path / "t@3", run=sw.RunOptions(dali_index=True))
    code = (
        "import sys\n"
        "from tfrecord.reader import tfrecord_loader\n"
        "for path in sys.argv[1:]:\n"
        "    for record in tfrecord_loader(path, path + '.idx', {'id': 'int', 'name': 'byte'}):\n"
        "        print(int(record['id'][0]))\n"
    )
    ids = [int(line) for line in in_a_process(code, *shard_paths(tmp_path, "t")).split()]
    assert sorted(ids) == list(range(COUNT))


@needs_pypi_reader
def test_our_idx_is_the_one_that_the_pypi_tool_makes(tmp_path: Path) -> None:
    sw.write(features(), tmp_path / "t@3", run=sw.RunOptions(dali_index=True))
    code = "import sys, tfrecord.tools as t; t.create_index(sys.argv[1], sys.argv[2])"
    for path in shard_paths(tmp_path, "t"):
        theirs = tmp_path / "theirs.idx"
        in_a_process(code, path, str(theirs))
        assert Path(f"{path}.idx").read_text() == theirs.read_text()


# -- files of others ------------------------------------------------------------------------------


def test_all_files_of_others_have_the_counts_and_verdicts_that_are_known(data_dir: Path) -> None:
    expected = json.loads((data_dir / "expected.json").read_text())
    assert len(expected) == 43
    for name, told in expected.items():
        path = data_dir / name
        assert hashlib.sha256(path.read_bytes()).hexdigest() == told["sha256"], name
        report = sw.stats(str(path))
        scan = report.scans[0]
        assert scan.num_records == told["records"], name
        assert scan.sizes.total == told["payload_total"], name
        assert (scan.sizes.min, scan.sizes.max) == (told["payload_min"], told["payload_max"]), name
        assert scan.compression == told["compression"].lower(), name
        assert report.num_defects == 0, name
        found: dict[str, Counter[str]] = {}
        if told.get("kinds", {}).get("Example"):
            for payload in sw.read_records(path):
                for feature, value in sw.decode_example(payload).items():
                    found.setdefault(feature, Counter())[kind_of(value)] += 1
            types = {feature: dict(counts) for feature, counts in found.items()}
            assert types == {f: entry["types"] for f, entry in told["features"].items()}, name


def kind_of(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, list):
        return "bytes"
    return "int64" if value.dtype == np.int64 else "float"


def test_the_taxi_table_gives_the_records_that_tfx_wrote_from_it(
    data_dir: Path, tmp_path: Path
) -> None:
    components = data_dir / "tensorflow+tfx/tfx/components/testdata"
    manifest = sw.write(str(components / "external/csv"), tmp_path / "taxi@12")
    assert (manifest.num_records, len(manifest.features)) == (15_000, 18)
    ours = Counter(p for path in shard_paths(tmp_path, "taxi") for p in sw.read_records(path))
    theirs = Counter(tfx_records(components / "csv_example_gen/Split-eval"))
    assert theirs.total() == 5_091
    assert not theirs - ours


def tfx_records(folder: Path) -> Iterator[bytes]:
    """Yield TFX's records with their keys in our order: TFX writes them in any."""
    for path in sorted(folder.glob("*.gz")):
        for payload in sw.read_records(path):
            decoded = sw.decode_example(payload)
            yield sw.encode_example({k: sw.UNSET if v is None else v for k, v in decoded.items()})


def test_a_table_is_read_as_the_csv_module_reads_it(data_dir: Path, tmp_path: Path) -> None:
    path = data_dir / "tensorflow+tfx/tfx/components/testdata/external/csv/data2.csv"
    sw.write(str(path), tmp_path / "t@1")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    payloads = list(sw.read_records(tmp_path / "t.tfrecord-00000-of-00001"))
    assert len(rows) == len(payloads)
    for row, payload in zip(rows, payloads, strict=True):
        decoded = sw.decode_example(payload)
        for name, cell in row.items():
            value = decoded[name]
            if not cell:
                assert value is None
            elif isinstance(value, list):
                assert value == [cell.encode()]
            else:
                assert value is not None
                assert value[0] == np.float32(cell) or int(value[0]) == float(cell)
