"""The README's table of sources, on other people's files: every row is run as a person runs it.

Each is written by the command in one process and in two, and by Beam, which have to give the same
bytes; ``shard-stats`` proves them; and what ``shardwriter.open`` reads is held against libraries
that shardwriter does not use. Where the test data has no files of a format (VOC's XML, arrays
without Python objects, one TFRecord file of ordinary features), the reference library makes them.
"""

from __future__ import annotations

import base64
import csv
import gzip
import io
import itertools
import json
import os
import re
import subprocess
import tarfile
import wave
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from beam_jobs import assert_same, run
from environments import peers_python
from paths import ROOT
from typer.testing import CliRunner

import shardwriter as sw
from shardwriter.cli import app
from shardwriter.sources.find import FORMATS, open_source

pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
from PIL import Image

from shardwriter.cluster import WriteShards
from shardwriter.writing.options import DatasetOptions

ASSETS = "cvat-ai+datumaro/tests/assets"
TFX = "tensorflow+tfx/tfx/components/testdata"
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Attributes:
        read: Reads the records with other libraries, from the source.
        real: The file or folder below the test data; None where ``make`` makes it.
        make: Gives SOURCE, from the real file or folder and a folder for what it writes.
        some: Features that ``read`` gives; None: all that there are.
        options: More of ``write``, as the API calls them.
    """

    read: Callable[[Path], Rows]
    real: str
    make: Callable[[Path, Path], Path | str] | None = None
    some: bool = False
    limit: int | None = None


# -- what other libraries read ---------------------------------------------------------------------


def image_features(path: Path, root: Path) -> dict[str, Any]:
    with Image.open(path) as image:
        width, height = image.size
        format = image.format
    assert format is not None
    return {
        "image/encoded": path.read_bytes(),
        "image/format": format.lower(),
        "image/height": height,
        "image/width": width,
        "image/filename": path.relative_to(root).as_posix(),
    }


def read_classes(root: Path) -> Rows:
    folders = sorted(path for path in root.iterdir() if path.is_dir())
    return [
        {
            **image_features(path, root),
            "image/class/label": label,
            "image/class/text": folder.name,
        }
        for label, folder in enumerate(folders)
        for path in sorted(folder.iterdir())
    ]


def read_camvid(root: Path) -> Rows:
    """By CamVid's own lists of pairs."""
    rows = []
    for part in ("test", "train", "val"):
        for line in (root / f"{part}.txt").read_text().splitlines():
            # Lists begin with the name of a folder that they were made in.
            image, mask = (Path(*Path(name).parts[-2:]) for name in line.split())
            mask_features = image_features(root / mask, root)
            rows.append(image_features(root / image, root))
            for name in ("encoded", "format", "filename"):
                rows[-1][f"image/segmentation/class/{name}"] = mask_features[f"image/{name}"]
    return sorted(rows, key=lambda row: row["image/filename"])


def read_coco(path: Path) -> Rows:
    document = json.loads(path.read_text())
    names = {each["id"]: each["name"] for each in document["categories"]}
    images = path.parent.parent / "images/val"
    rows = []
    for image in document["images"]:
        found = [a for a in document["annotations"] if a["image_id"] == image["id"]]
        rows.append(image_features(images / image["file_name"], images))
        rows[-1] |= {
            "image/object/class/label": [a["category_id"] for a in found],
            "image/object/class/text": [names[a["category_id"]] for a in found],
            "image/object/is_crowd": [a["iscrowd"] for a in found],
            "image/object/area": [float(a["area"]) for a in found],
        }
    return rows


def make_voc(real: Path, folder: Path) -> Path:
    """Annotate real images."""
    for number, image in enumerate(sorted(real.rglob("*.jpg"))):
        name = f"{number}_{image.name}"
        (folder / "JPEGImages").mkdir(exist_ok=True)
        (folder / "Annotations").mkdir(exist_ok=True)
        (folder / "JPEGImages" / name).write_bytes(image.read_bytes())
        root = ET.Element("annotation")
        ET.SubElement(root, "filename").text = name
        size = ET.SubElement(root, "size")
        with Image.open(image) as opened:
            for tag, value in zip(("width", "height"), opened.size, strict=True):
                ET.SubElement(size, tag).text = str(value)
        for class_name in ("dog", "cat")[: number % 3]:
            each = ET.SubElement(root, "object")
            ET.SubElement(each, "name").text = class_name
            box = ET.SubElement(each, "bndbox")
            for tag, value in zip(("xmin", "ymin", "xmax", "ymax"), (1, 2, 3, 4), strict=True):
                ET.SubElement(box, tag).text = str(value)
        ET.ElementTree(root).write(folder / "Annotations" / f"{Path(name).stem}.xml")
    return folder


def read_voc(folder: Path) -> Rows:
    rows = []
    for path in sorted((folder / "Annotations").iterdir()):
        root = ET.parse(path).getroot()
        name = root.findtext("filename")
        assert name is not None
        rows.append(image_features(folder / "JPEGImages" / name, folder / "JPEGImages"))
        names = [each.findtext("name") for each in root.iter("object")]
        rows[-1] |= {
            "image/object/class/text": names,
            "image/object/class/label": [{"cat": 8, "dog": 12}[str(name)] for name in names],
            "image/object/difficult": [0] * len(names),
        }
    return rows


def number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text or None


def read_csv(path: Path) -> Rows:
    with open(path, newline="", encoding="utf-8") as file:
        return [
            {name: number(cell) for name, cell in row.items()}
            for row in itertools.islice(csv.DictReader(file), 200)
        ]


def read_lines(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_parquet(path: Path) -> Rows:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    rows: Rows = parquet.read_table(path).slice(0, 200).to_pylist()
    return rows


SAVE = """
import sys
from datasets import Dataset
from pyarrow import parquet
Dataset(parquet.read_table(sys.argv[1])).save_to_disk(sys.argv[2], num_shards=2)
"""


def make_saved(real: Path, folder: Path) -> Path:
    """Have Hugging Face's own library save a real table."""
    python = peers_python()
    if subprocess.run([python, "-c", "import datasets"], capture_output=True).returncode:
        pytest.skip("datasets is not installed there")
    script = [python, "-c", SAVE, str(real), str(folder / "saved")]
    subprocess.run(script, capture_output=True, check=True)
    return folder / "saved"


def read_saved(path: Path) -> Rows:
    import pyarrow as pa

    rows: Rows = []
    for file in sorted(path.glob("*.arrow")):
        with pa.ipc.open_stream(file) as stream:
            rows += stream.read_all().to_pylist()
    return rows[:200]


def make_arrays(real: Path, folder: Path) -> Path:
    """Save the numbers of an archive whose arrays do not have as many rows."""
    with np.load(real) as arrays:
        topo = arrays["topo"]
        np.save(folder / "topo.npy", topo)
        np.save(folder / "latitude.npy", arrays["latitude"])
        np.save(folder / "columns.npy", np.asfortranarray(topo[:, :7].astype(">f8")))
    return folder


def read_arrays(folder: Path) -> Rows:
    arrays = {path.stem: np.load(path) for path in folder.glob("*.npy")}
    return [{n: a[row] for n, a in arrays.items()} for row in range(len(arrays["topo"]))]


def make_records(real: Path, folder: Path) -> Path:
    """Leave a TFRecord file's records as they are, and its name as others read it."""
    path = folder / "penguins.tfrecord.gz"
    path.write_bytes(real.read_bytes())
    return path


def read_records(path: Path) -> Rows:
    """Of TensorFlow's framing only lengths and payloads, of Examples the payload."""
    data, at, rows = gzip.decompress(path.read_bytes()), 0, []
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        rows.append({"": data[at + 12 : at + 12 + length]})
        at += 16 + length
    return rows


def read_tar(path: Path) -> Rows:
    rows: dict[str, dict[str, Any]] = {}
    with tarfile.open(path) as tar:
        for member in tar:
            file = tar.extractfile(member)
            if file is None:
                continue
            found = re.fullmatch(r"((?:.*/)?[^./]+)\.([^/]*)", member.name)
            assert found
            data = file.read()
            row = rows.setdefault(found[1], {"__key__": found[1]})
            row[found[2]] = int(data) if found[2] == "cls" else data
    return list(rows.values())


def read_wavs(folder: Path) -> Rows:
    rows = []
    for path in sorted(folder.glob("*.wav")):
        rows.append({"audio/encoded": path.read_bytes(), "audio/filename": path.name})
        try:
            with wave.open(str(path)) as file:
                rows[-1] |= {
                    "audio/sample_rate": file.getframerate(),
                    "audio/channels": file.getnchannels(),
                    "audio/num_frames": file.getnframes(),
                    "audio/bits_per_sample": 8 * file.getsampwidth(),
                }
        except wave.Error:
            pass  # it knows no floats and no extensible headers
    return rows


def rides() -> Rows:
    """What the row for Python objects reads: dictionaries of another library."""
    path = Path(os.environ["SHARDWRITER_TEST_DATA"]) / TFX / "external/csv/data.csv"
    return [{"fare": float(row["fare"] or 0), "cab": row["company"]} for row in cells_of(path)]


def cells_of(path: Path) -> Rows:
    with open(path, newline="", encoding="utf-8") as file:
        return list(itertools.islice(csv.DictReader(file), 200))


TOPO = "pypi+matplotlib/matplotlib/mpl-data/sample_data/topobathy.npz"
PENGUINS = f"{TFX}/penguin/data/Split-train/data_tfrecord-00000-of-00001.gz"
COCO = f"{ASSETS}/coco_dataset/coco_instances/annotations/instances_val.json"
CASES = {
    "image-folder": Case(read_classes, f"{ASSETS}/imagenet_dataset"),
    "image-mask": Case(read_camvid, f"{ASSETS}/camvid_dataset"),
    "coco": Case(read_coco, COCO, some=True),
    "voc": Case(read_voc, f"{ASSETS}/yolo_dataset", make_voc, some=True),
    "csv": Case(read_csv, f"{TFX}/external/csv/data.csv", limit=200),
    "jsonl": Case(read_lines, "tensorflow+io/tests/test_json/feature.ndjson"),
    "parquet": Case(read_parquet, f"{TFX}/external/parquet/data.parquet", limit=200),
    "huggingface": Case(read_saved, f"{TFX}/external/parquet/data.parquet", make_saved, limit=200),
    "numpy": Case(read_arrays, TOPO, make_arrays),
    "tfrecord": Case(read_records, PENGUINS, make_records),
    "webdataset": Case(read_tar, "webdataset+webdataset/testdata/sample.tgz"),
    "audio": Case(read_wavs, "tensorflow+io/tests/test_audio", some=True),
    "python": Case(
        lambda path: rides(), f"{TFX}/external/csv/data.csv", lambda *_: f"{__name__}:rides"
    ),
}


def test_every_row_of_the_table_is_here():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index("| SOURCE | `--format`") :].partition("\n\n")[0]
    named = [re.findall(r"`([^`]+)`", row.split(" | ")[1])[0] for row in table.splitlines()[2:]]
    assert sorted(named) == sorted(FORMATS)
    assert set(CASES) == set(named)


def command(*arguments: object) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def same(value: Any, expected: Any) -> bool:
    """Tell whether two values are one; text may be in bytes, and 64 bits are rounded to 32."""
    if isinstance(expected, bytes) and isinstance(value, str):
        value = value.encode()
    if isinstance(expected, list | np.ndarray) or isinstance(value, np.ndarray):
        if isinstance(expected, list) and expected and isinstance(expected[0], str):
            return list(value) == expected
        found = np.asarray(value)
        wanted = np.asarray(expected)
        if wanted.dtype.kind == "f":
            wanted = wanted.astype(np.float32)
        return found.shape == wanted.shape and bool((found == wanted).all())
    if isinstance(expected, float):
        return np.float32(value) == np.float32(expected)
    return bool(value == expected) and (value is None) == (expected is None)


@pytest.mark.parametrize("format", CASES)
def test_a_row_of_the_table(format, data_dir, tmp_path):
    case = CASES[format]
    real = data_dir / case.real
    if not real.exists():
        pytest.skip(f"{case.real} is not among the test data")
    (tmp_path / "made").mkdir()
    source = str(real if case.make is None else case.make(real, tmp_path / "made"))
    more = [] if case.limit is None else ["--limit", case.limit]
    command("write", source, tmp_path / "serial/d@3", "--engine", "serial", *more)
    command("write", source, tmp_path / "two/d@3", "--workers", 2, *more)
    options = DatasetOptions(limit=case.limit)
    run(WriteShards(tmp_path / "beam/d@3", source=source, options=options))
    assert_same(tmp_path / "two", tmp_path / "serial")
    assert_same(tmp_path / "beam", tmp_path / "serial")

    expected = case.read(Path(source))
    told = json.loads(command("stats", tmp_path / "serial/d", "--json"))
    assert (told["num_records"], told["num_defects"]) == (len(expected), 0)
    manifest = json.loads((tmp_path / "serial/d.manifest.json").read_text())
    assert manifest["source"]["kind"] == format

    if format == "tfrecord":
        shards = [list(sw.read_records(p)) for p in sorted(tmp_path.glob("serial/d.tfrecord-*"))]
        assert [{"": shards[i % 3][i // 3]} for i in range(len(expected))] == expected
        return
    data = sw.open(tmp_path / "serial/d")
    assert len(data) == len(expected) > 0
    for record, row in zip(data, expected, strict=True):
        assert case.some or set(record) == set(row)
        for name, value in row.items():
            assert same(record[name], value), (name, record[name], value)


# -- the webdataset package ------------------------------------------------------------------------

SAMPLES = """
import base64, json, sys, webdataset
for path in sys.argv[1:]:
    for sample in webdataset.WebDataset(path, shardshuffle=False):
        del sample["__url__"]
        sample.pop("__local_path__", None)
        print(json.dumps([[name, value if isinstance(value, str)
            else base64.b64encode(value).decode()] for name, value in sample.items()]))
"""


def odd_members(tar: tarfile.TarFile) -> None:
    def add(name: str, data: bytes = b"", **more: Any) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        for key, value in more.items():
            setattr(info, key, value)
        tar.addfile(info, io.BytesIO(data))

    add("d", type=tarfile.DIRTYPE)
    add("d/1.jpg", b"1")
    add("d/1.Seg.PNG", b"2")
    add("d.x/1.bin", b"3")
    add("d/.hidden.bin", b"4")
    add("d/._1.bin", b"5")
    add("__meta__", b"6")
    add("no ending", b"7")
    add("link.bin", type=tarfile.SYMTYPE, linkname="d/1.jpg")
    add("./2.bin", b"8")
    add("/etc/3.bin", b"9")
    add("../4.bin", b"10")
    add("\u00e9" * 120 + "/5.bin", b"11")
    add("6.a.b.c", b"")
    add("6.d", b"12" * 700)


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_have_the_samples_of_the_webdataset_package(data_dir, tmp_path, format):
    python = peers_python()
    if subprocess.run([python, "-c", "import webdataset"], capture_output=True).returncode:
        pytest.skip("webdataset is not installed there")
    with tarfile.open(tmp_path / "odd.tar", "w", format=format) as tar:
        odd_members(tar)
    named = ["sample.tgz", "compressed.tar"]
    real = [data_dir / "webdataset+webdataset/testdata" / name for name in named]
    paths = [tmp_path / "odd.tar", *filter(Path.exists, real)]
    script = [python, "-c", SAMPLES, *map(str, paths)]
    lines = subprocess.run(script, capture_output=True, text=True, check=True).stdout.splitlines()
    found = []
    for path in paths:
        source = open_source(str(path))
        for item in source.items():
            features = {n: v for n, v in source.load(item).items() if n != "__key__"}
            encoded = {
                n: v if isinstance(v, bytes) else str(v).encode() for n, v in features.items()
            }
            found.append([["__key__", source.load(item)["__key__"]]])
            found[-1] += [[n, base64.b64encode(v).decode()] for n, v in encoded.items()]
    # Hidden files of a folder are a sample for it, whose key is the folder; here they are left out.
    theirs = [sample for sample in map(json.loads, lines) if not sample[0][1].endswith("/")]
    assert found == theirs
    assert len(found) > 7
