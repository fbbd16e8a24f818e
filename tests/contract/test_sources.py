"""What every source promises, whatever it reads: each test runs with the cases of all formats.

A case is a subclass of ``Case``, which says what it must have, and an entry of ``FILES`` or
``ALL``.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import pickle
import shutil
import tarfile
import wave
from dataclasses import replace

import numpy as np
import pytest
from detection_sets import everything, voc_object, write_coco, write_voc
from small_images import gif, write_images

import shardwriter
from shardwriter import SKIP
from shardwriter.formats import UNSET, encode_example
from shardwriter.formats.tfrecord import frame
from shardwriter.schema.feature_types import describe
from shardwriter.schema.schema import Schema
from shardwriter.sources.audio import AudioFolder
from shardwriter.sources.coco import CocoDetection
from shardwriter.sources.csv import CsvTable
from shardwriter.sources.find import open_source
from shardwriter.sources.image_folder import ImageFolder
from shardwriter.sources.image_mask import ImageMask
from shardwriter.sources.jsonl import JsonLines
from shardwriter.sources.numpy import NumpyRows
from shardwriter.sources.parquet import ParquetTable
from shardwriter.sources.python import PythonSource
from shardwriter.sources.source import ColumnSource
from shardwriter.sources.tfrecord import TFRecordFiles
from shardwriter.sources.voc import VocDetection
from shardwriter.sources.webdataset import WebDataset
from shardwriter.writing.encode import ItemEncoder
from shardwriter.writing.options import DatasetOptions


def write_table(path, first, stop, delimiter=",", pack=bytes):
    lines = [["id", "score", "name", "none"]]
    for i in range(first, stop):
        name = ["", "é\nü", 'say "hi"', "x,y;z"][i % 4]
        lines.append([str(i), "" if i % 5 == 0 else str(i / 8), name, ""])
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows(lines)
    path.write_bytes(pack(path.read_bytes()))


class Case:
    """Input of one format; every test of a source runs with each case.

    A new format needs a case in ``FILES``; one that does not read files is in ``ALL`` only.

    Attributes:
        num_items: The number of items.
        is_counted: Whether the source knows this number before it is read to the end.
        more: Bytes that may follow a file of this format.
    """

    num_items: int
    is_counted = True
    more = b"\0"

    def write(self, folder):
        """Write the input into an empty folder."""

    def open(self, folder):
        """Return the source of the folder."""
        raise NotImplementedError

    def change(self, folder):
        """Change the data of the first file, so that it stays valid: append ``more`` to it."""
        path = min(path for path in folder.rglob("*") if path.is_file())
        is_gzip = path.suffix == ".gz"
        data = gzip.decompress(path.read_bytes()) if is_gzip else path.read_bytes()
        path.write_bytes(gzip.compress(data + self.more) if is_gzip else data + self.more)


class ImageClasses(Case):
    num_items = 5

    def write(self, folder):
        write_images(folder, ["b/2.gif", "b/1.gif", "a/x/3.gif", "a/10.gif", "c/é.gif"])

    def open(self, folder):
        return ImageFolder(str(folder))


class ImagesAlone(ImageClasses):
    num_items = 3

    def write(self, folder):
        write_images(folder, ["b.gif", "a.gif", "c.gif"])


class ImagesAndMasks(Case):
    num_items = 4

    def write(self, folder):
        names = ["b/2", "b/1", "a", "c é"]
        write_images(folder, [f"images/{name}.gif" for name in names])
        write_images(folder, [f"masks/{name}_mask.gif" for name in names])

    def open(self, folder):
        return ImageMask(str(folder))


class ImagesAndMasksInParts(ImagesAndMasks):
    num_items = 6

    def write(self, folder):
        for side in ("train", "trainannot", "val", "valannot"):
            write_images(folder, [f"{side}/{number}.gif" for number in range(3)])


class ImagesAndMasksInOneFolder(ImagesAndMasks):
    num_items = 3

    def write(self, folder):
        names = ("1", "2", "é")
        write_images(folder, [f"{name}{word}.gif" for name in names for word in ("", "_mask")])
        for name in names:  # of one size
            (folder / f"{name}_mask.gif").write_bytes((folder / f"{name}.gif").read_bytes())


class CocoFolder(Case):
    num_items = 5
    more = b"\n"

    def write(self, folder):
        write_coco(folder, everything())

    def open(self, folder):
        return CocoDetection(str(folder))


class VocFolder(Case):
    num_items = 4
    more = b"\n"

    def write(self, folder):
        cat, dog = voc_object("cat"), voc_object("dog", (0, 0, 40, 20), "")
        write_voc(folder, {"b": [cat], "a": [dog, cat], "10": [], "é": [dog]})

    def open(self, folder):
        return VocDetection(str(folder))


class VocInOneFolder(VocFolder):
    num_items = 2

    def write(self, folder):
        write_voc(folder, {"b": [], "a": [voc_object("robot")]}, "", "")


class CsvFile(Case):
    num_items = 23
    more = b"99,1,x,\r\n"

    def write(self, folder):
        write_table(folder / "t.csv", 0, 23)

    def open(self, folder):
        return CsvTable(sorted(str(path) for path in folder.iterdir()))


class CsvFiles(CsvFile):
    num_items = 30

    def write(self, folder):
        write_table(folder / "1.csv", 0, 9)
        write_table(folder / "2.csv", 9, 9)
        write_table(folder / "3.tsv", 9, 30, delimiter="\t")


class GzippedCsvFiles(CsvFile):
    num_items = 20

    def write(self, folder):
        write_table(folder / "1.csv.gz", 0, 12, pack=gzip.compress)
        write_table(folder / "2.csv.gz", 12, 20, delimiter=";", pack=gzip.compress)


class CsvWithoutRows(CsvFile):
    num_items = 0

    def write(self, folder):
        write_table(folder / "t.csv", 0, 0)


class ParquetAndArrowFiles(Case):
    """Row groups of several sizes, in two files and an Arrow stream."""

    num_items = 23

    @staticmethod
    def table(first, stop):
        pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        ids = range(first, stop)
        columns = {
            "id": pa.array(ids, pa.int32()),
            "score": pa.array([None if i % 5 == 0 else i / 8 for i in ids], pa.float64()),
            "half": pa.array([np.float16(i) for i in ids], pa.float16()),
            "flag": pa.array([None if i % 3 == 0 else i % 2 == 0 for i in ids]),
            "name": pa.array([["", "\u00e9\n\u00fc", None][i % 3] for i in ids]),
            "blob": pa.array([bytes([i]) * i for i in ids], pa.large_binary()),
            "word": pa.array([f"w{i % 2}" for i in ids]).dictionary_encode(),
            "list": pa.array(
                [None if i % 4 == 0 else [i] * (i % 3) for i in ids], pa.list_(pa.int8())
            ),
            "texts": pa.array([["a", str(i)][: i % 3] for i in ids]),
            "pair": pa.array([[i, i + 0.5] for i in ids], pa.list_(pa.float32(), 2)),
            "grid": pa.array([[[i, 1, 2]] * (i % 3) for i in ids], pa.list_(pa.list_(pa.int64()))),
            "none": pa.nulls(len(ids)),
        }
        types = {"flag": pa.bool_(), "name": pa.string(), "texts": pa.list_(pa.string())}
        types["word"] = pa.dictionary(pa.int32(), pa.string())
        return pa.table({n: c.cast(types.get(n, c.type)) for n, c in columns.items()})

    def write(self, folder):
        pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        from pyarrow import feather
        from pyarrow import parquet as pq

        pq.write_table(self.table(0, 11), folder / "1.parquet", row_group_size=4)
        pq.write_table(self.table(0, 0), folder / "2.parquet")
        with pa.ipc.new_stream(folder / "3.arrow", self.table(0, 0).schema) as stream:
            stream.write_table(self.table(11, 17), max_chunksize=4)
        feather.write_feather(self.table(17, 23), folder / "4.feather", chunksize=5)

    def open(self, folder):
        return ParquetTable(sorted(str(path) for path in folder.iterdir()))

    def change(self, folder):
        from pyarrow import parquet as pq

        pq.write_table(self.table(0, 12), folder / "1.parquet")


class SavedHuggingFace(Case):
    """A folder as ``save_to_disk`` of ``datasets`` makes it: Arrow streams, and two JSON files."""

    num_items = 20

    features = {  # noqa: RUF012 - of a test
        "id": {"dtype": "int64", "_type": "Value"},
        "label": {"names": ["cat", "dog", "eel"], "_type": "ClassLabel"},
        "picture": {"_type": "Image"},
    }

    def table(self, first, stop):
        pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        metadata = {"huggingface": json.dumps({"info": {"features": self.features}})}
        ids = range(first, stop)
        return pa.table(
            {
                "id": list(ids),
                "label": [i % 3 for i in ids],
                "picture": [{"bytes": gif(i + 1, 2), "path": f"{i}.gif"} for i in ids],
            },
        ).replace_schema_metadata(metadata)

    def write(self, folder):
        pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        files = []
        for number, first in enumerate(range(0, 20, 10)):
            files.append({"filename": f"data-{number:05}-of-00002.arrow"})
            table = self.table(first, first + 10)
            with pa.ipc.new_stream(folder / files[-1]["filename"], table.schema) as stream:
                stream.write_table(table, max_chunksize=4)
        names = ("_fingerprint", "_format_columns", "_format_type", "_split")
        state = {**dict.fromkeys(names), "_format_kwargs": {}, "_output_all_columns": False}
        (folder / "state.json").write_text(json.dumps({**state, "_data_files": files}))
        (folder / "dataset_info.json").write_text(json.dumps({"features": self.features}))

    def open(self, folder):
        return open_source(str(folder))

    def change(self, folder):
        pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        table = self.table(1, 11)
        with pa.ipc.new_stream(folder / "data-00000-of-00002.arrow", table.schema) as stream:
            stream.write_table(table, max_chunksize=4)


class LoadedHuggingFace(SavedHuggingFace):
    """The same as an object of ``datasets``."""

    def open(self, folder):
        datasets = pytest.importorskip("datasets", reason="datasets is not installed")
        return open_source(datasets.load_from_disk(str(folder)))


class StreamedHuggingFace(LoadedHuggingFace):
    is_counted = False

    def open(self, folder):
        datasets = pytest.importorskip("datasets", reason="datasets is not installed")
        return open_source(datasets.load_from_disk(str(folder)).to_iterable_dataset())


class TorchDataset(Case):
    """A map-style dataset of tensors, alone or in a loader."""

    num_items = 7

    def __init__(self, batch_size=None):
        self.batch_size = batch_size
        self.is_counted = batch_size is None

    def write(self, folder):
        pass

    def open(self, folder):
        data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
        return open_source(
            data.DataLoader(MapStyle(), self.batch_size) if self.batch_size else MapStyle()
        )


class NpyFiles(Case):
    num_items = 9

    def write(self, folder):
        records = np.zeros(9, [("a", ">i4"), ("b", [("c", "f2", (2,)), ("d", "U3")])])
        records["b"]["d"] = "\u00e9x"
        np.save(folder / "records.npy", records)
        np.save(folder / "x.npy", np.arange(18, dtype=np.uint8).reshape(9, 2))
        np.save(folder / "y.npy", np.asfortranarray(np.arange(54.0).reshape(9, 2, 3)))

    def open(self, folder):
        return NumpyRows(sorted(str(path) for path in folder.iterdir()))

    def change(self, folder):
        np.save(folder / "x.npy", np.ones((9, 2), np.uint8))


class NpzFile(NpyFiles):
    num_items = 7

    save = staticmethod(np.savez)

    def write(self, folder):
        self.save(folder / "t.npz", x=np.arange(7), name=np.array(list("abcdefg")), b=[b"1"] * 7)

    def change(self, folder):
        self.save(folder / "t.npz", x=np.arange(1, 8), name=np.array(list("abcdefg")))


class CompressedNpzFile(NpzFile):
    save = staticmethod(np.savez_compressed)


ITEMS = [{"x": i, "y": [0.5 * i], "z": f"text {i}"} for i in range(7)]


class MapStyle:
    def __len__(self):
        return len(ITEMS)

    def __getitem__(self, index):
        return dict(ITEMS[index])


class PythonObject(Case):
    num_items = 7

    def __init__(self, data, *, is_counted=True):
        self.data = data
        self.is_counted = is_counted

    def write(self, folder):
        pass

    def open(self, folder):
        return PythonSource(self.data, name="mod:data")


class JsonLinesFiles(Case):
    num_items = 23
    more = b'{"id": 7}\n'

    def write(self, folder):
        lines = [json.dumps(row) for row in ROWS]
        (folder / "1.jsonl").write_text("\n".join(lines[:9]) + "\n")
        (folder / "2.jsonl").write_text("")
        (folder / "3.ndjson.gz").write_bytes(gzip.compress("\r\n\n".join(lines[9:]).encode()))

    def open(self, folder):
        return JsonLines(sorted(str(path) for path in folder.iterdir()))


ROWS = [
    {
        "id": i,
        "name": ["", "é\nü", None][i % 3],
        "score": i if i % 4 else i / 8,
        "list": list(range(i % 3)),
        "none": None,
        **({"rare": i % 2 == 0} if i % 5 == 0 else {}),
    }
    for i in range(23)
]


def write_records(path, first, stop, pack=bytes):
    records = [encode_example({"x": i, "y": b"y" * i}) for i in range(first, stop)]
    path.write_bytes(pack(b"".join(map(frame, records))))


class TFRecords(Case):
    num_items = 20
    more = frame(b"")

    def write(self, folder):
        write_records(folder / "1.tfrecord", 0, 9)
        write_records(folder / "2.tfrecord", 9, 9)
        write_records(folder / "3.tfrecord", 9, 20)

    def open(self, folder):
        return TFRecordFiles(str(folder))


class ShardwriterDataset(TFRecords):
    num_items = 15

    def write(self, folder):
        rows = ({"x": i} if i % 4 else SKIP for i in range(20))
        shardwriter.write(rows, folder / "d@3", map=lambda row: row)


class GzippedTFRecords(TFRecords):
    is_counted = False

    def write(self, folder):
        write_records(folder / "1.tfrecord.gz", 0, 9, gzip.compress)
        write_records(folder / "2.tfrecord.gz", 9, 20, gzip.compress)


def write_tar(path, first, stop, pack=bytes):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for i in range(first, stop):
            members = {"gif": gif(i + 1, 7), "cls": str(i).encode(), "seg.txt": b"\xc3\xa9" * i}
            for extension, data in members.items():
                info = tarfile.TarInfo(f"é/{i:04}.{extension}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    path.write_bytes(pack(file.getvalue()))


class TarFiles(Case):
    num_items = 20

    def write(self, folder):
        write_tar(folder / "1.tar", 0, 9)
        write_tar(folder / "2.tar", 0, 0)
        write_tar(folder / "3.tar", 0, 11)

    def open(self, folder):
        return WebDataset(sorted(str(path) for path in folder.iterdir()))


class GzippedTarFiles(TarFiles):
    is_counted = False
    more = b"after the end marker"

    def write(self, folder):
        write_tar(folder / "1.tar.gz", 0, 9, gzip.compress)
        write_tar(folder / "2.tar", 9, 20)


class AudioClasses(Case):
    num_items = 4

    def write(self, folder):
        for i, name in enumerate(["b/2.wav", "b/1.WAV", "a/x/3.wav", "c/é.wav"]):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with wave.open(str(path), "wb") as file:
                file.setparams((2, 2, 8000 + i, 0, "NONE", ""))
                file.writeframes(b"abcd" * i)

    def open(self, folder):
        return AudioFolder(str(folder))


FILES = {
    "images in classes": ImageClasses(),
    "images without classes": ImagesAlone(),
    "images and masks": ImagesAndMasks(),
    "images and masks in parts": ImagesAndMasksInParts(),
    "coco": CocoFolder(),
    "voc": VocFolder(),
    "voc in one folder": VocInOneFolder(),
    "csv": CsvFile(),
    "several csv": CsvFiles(),
    "gzipped csv": GzippedCsvFiles(),
    "csv without rows": CsvWithoutRows(),
    "json lines": JsonLinesFiles(),
    "parquet": ParquetAndArrowFiles(),
    "saved huggingface": SavedHuggingFace(),
    "npy": NpyFiles(),
    "npz": NpzFile(),
    "compressed npz": CompressedNpzFile(),
    "tfrecord": TFRecords(),
    "gzipped tfrecord": GzippedTFRecords(),
    "webdataset": TarFiles(),
    "gzipped webdataset": GzippedTarFiles(),
    "audio in classes": AudioClasses(),
    "images and masks in one folder": ImagesAndMasksInOneFolder(),
}
ALL = {
    **FILES,
    "shardwriter dataset": ShardwriterDataset(),
    "python list": PythonObject(ITEMS),
    "python map-style": PythonObject(MapStyle()),
    "python function": PythonObject(lambda: (dict(item) for item in ITEMS), is_counted=False),
    "python iterable": PythonObject(dict(enumerate(ITEMS)).values(), is_counted=False),
    "loaded huggingface": LoadedHuggingFace(),
    "streamed huggingface": StreamedHuggingFace(),
    "torch dataset": TorchDataset(),
    "torch loader": TorchDataset(3),
}

every_source = pytest.mark.parametrize("case", ALL.values(), ids=ALL)
file_source = pytest.mark.parametrize("case", FILES.values(), ids=FILES)


@pytest.fixture
def folder(tmp_path, case):
    path = tmp_path / "data"
    path.mkdir()
    case.write(path)
    return path


@pytest.fixture
def source(folder, case):
    return case.open(folder)


def loaded(source, items=None):
    """Return features as bytes, so that nan is equal to nan."""
    records = [source.load(i) for i in (source.items() if items is None else items)]
    return [r if isinstance(r, bytes) else encode_example(r) for r in records]


@every_source
def test_listing_twice_gives_the_same_items(source):
    assert source.resumable
    assert list(source.items()) == list(source.items())


@every_source
def test_two_listings_at_once_do_not_disturb_each_other(source):
    first, second = source.items(), source.items()
    taken = [next(first, None), next(second, None), next(first, None)]
    again = list(source.items())[:2]
    assert taken == (again[:1] + again[:1] + again[1:] if again else [None] * 3)


@every_source
def test_another_opening_gives_the_same_items(source, folder, case):
    other = case.open(folder)
    assert list(other.items()) == list(source.items())
    assert loaded(other) == loaded(source)
    assert other.digest() == source.digest()
    assert other.fingerprint() == source.fingerprint()
    assert other.plan == source.plan


@every_source
def test_any_item_is_the_one_of_that_place(source):
    if not source.random_access:
        pytest.skip("gives its items in order only")
    items = list(source.items())
    for place in reversed(range(len(items))):
        assert source.item(place) == items[place]


@every_source
def test_the_number_of_items_is_right_or_unknown(source, case):
    assert source.num_items == (case.num_items if case.is_counted else None)
    assert len(list(source.items())) == case.num_items


@every_source
def test_loading_is_pure(source):
    items = list(source.items())
    first = loaded(source, items)
    assert loaded(source, items[::-1]) == first[::-1]
    for item in items:
        features = source.load(item)
        if isinstance(features, dict) and source.kind != "python":  # these are the user's own
            features.clear()
    assert loaded(source, items) == first


@every_source
def test_descriptors_are_picklable(source):
    items = list(source.items())
    travelled = pickle.loads(pickle.dumps(items))
    assert travelled == items
    assert loaded(source, travelled) == loaded(source, items)


@file_source
def test_a_source_that_travels_is_picklable(source):
    if not source.sendable:
        pytest.skip("it stays where it is")
    try:
        sent = pickle.dumps(source)
    except TypeError as error:
        assert "an open file" in str(error)
        pytest.skip("its open files go along in a way of their own")
    travelled = pickle.loads(sent)
    assert loaded(travelled) == loaded(source)
    assert travelled.digest() == source.digest()


@every_source
def test_keys_are_stable_and_of_one_item(source):
    keys = [source.key(item) for item in source.items()]
    assert keys == [source.key(item) for item in source.items()]
    if source.kind != "python":
        assert len(set(keys)) == len(keys)
        assert not any(os.path.isabs(key) for key in keys)


@every_source
def test_the_plan_is_what_loading_returns(source):
    if source.kind in ("python", "tfrecord"):
        assert source.plan == {}
        return
    schema = Schema(source.plan)
    for index, item in enumerate(source.items()):
        features = source.load(item)
        assert set(features) == set(source.plan) - ({"rare"} if index % 5 else set())
        for name, value in features.items():
            if value is not UNSET:
                found, planned = describe(name, value), source.plan[name]
                assert found.kind in (None, planned.kind)
                assert (
                    planned.join(replace(found, encoding=planned.encoding)).shape == planned.shape
                )
        schema.observe(index, features)
    for name, summary in schema.features.items():
        assert (summary.type.kind, summary.type.dtype) == (
            source.plan[name].kind,
            source.plan[name].dtype,
        )


@every_source
def test_vocabularies_and_label_are_of_planned_features(source):
    assert set(source.vocabularies) <= set(source.plan)
    assert source.label is None or source.label in source.plan
    for name, words in source.vocabularies.items():
        values = {source.load(item)[name] for item in source.items()}
        assert values == set(range(len(words)))


@every_source
def test_columns_give_the_records_of_rows(source):
    def written(encoder, records):
        gathered = list(records)
        inner = encoder.encoder
        return gathered, inner.schema.to_json(), inner.labels.to_json()

    options = DatasetOptions(label="name" if "name" in source.plan else None)
    items = list(enumerate(source.items()))
    rows, columns = ItemEncoder(source, options, 3), ItemEncoder(source, options, 3)
    one_by_one = written(rows, [(index, rows.record(index, item)) for index, item in items])
    assert written(columns, columns.records(items)) == one_by_one
    if isinstance(source, ColumnSource) and items:
        order = np.random.default_rng(0).permutation(len(items)).tolist()
        shuffled = ItemEncoder(source, options, 3).records([items[place] for place in order])
        assert list(shuffled) == [one_by_one[0][place] for place in order]


@file_source
def test_the_digest_does_not_know_where_and_when(source, folder, case, tmp_path):
    shutil.copytree(folder, tmp_path / "elsewhere" / "other name")
    other = case.open(tmp_path / "elsewhere" / "other name")
    assert other.digest() == source.digest()
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))
    assert case.open(folder).digest() == source.digest()


@file_source
def test_the_fingerprint_changes_with_time(source, folder, case):
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        before = case.open(folder).fingerprint()
        time_ns = path.stat().st_mtime_ns
        os.utime(path, ns=(time_ns, time_ns + 1_000_000_000))
        assert case.open(folder).fingerprint() != before
        os.utime(path, ns=(time_ns, time_ns))
    assert case.open(folder).fingerprint() == source.fingerprint()


@file_source
def test_the_digest_changes_with_the_data(source, folder, case):
    case.change(folder)
    assert case.open(folder).digest() != source.digest()


def test_the_digest_of_images_changes_with_a_name(tmp_path):
    write_images(tmp_path, ["a/1.gif", "a/2.gif"])
    before = ImageFolder(str(tmp_path)).digest()
    (tmp_path / "a/1.gif").rename(tmp_path / "a/0.gif")
    assert ImageFolder(str(tmp_path)).digest() != before
