"""``shardwriter schema --code``: what is printed runs as it is, and reads what was written."""

from __future__ import annotations

import ast
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from environments import PEERS, peers_python
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

import shardwriter as sw
from shardwriter.cli import app
from shardwriter.errors import ManifestError, OptionError, SourceError
from shardwriter.reading.loader_code import Framework
from shardwriter.reading.loader_code.facts import comment, quoted

sys.path.insert(0, str(PEERS))

from loader_values import digests

HEIGHT, WIDTH = 6, 8
NASTY = 'a "quote", {braces}\n\'\'\' \\ ü 日本 \u202e""" + x'
Row = dict[str, Any]


def png(array: np.ndarray) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


@dataclass
class Made:
    """A dataset with the rows that it was written from.

    ``absent`` and ``unset`` are features that some rows lack; ``fills`` is what stands for them.
    ``no_dali`` are features that DALI can not read, with what the program says of them.
    """

    folder: Path
    path: str
    rows: list[Row]
    fills: Row = field(default_factory=dict)
    no_dali: dict[str, str] = field(default_factory=dict)
    images: tuple[str, ...] = ()
    in_order: bool = True
    frameworks: tuple[str, ...] = ("tensorflow", "torch", "grain", "dali")
    num_records: int = 1000  # that types are found from

    @property
    def texts(self) -> list[str]:
        return sorted({n for r in self.rows for n, v in r.items() if _is_text(v)})

    def expected(self, framework: str) -> list[Row]:
        names = sorted({name for row in self.rows for name in row})
        wanted = []
        for row in self.rows:
            values = {}
            for name in names:
                if framework == "dali" and name in self.no_dali:
                    continue
                value = row.get(name)
                if isinstance(value, list) and name == "ids":
                    value = np.array(value, np.int64)
                value = self.fills[name] if value is None or value is sw.UNSET else value
                if name in self.images and framework == "torch" and np.ndim(value) == 3:
                    value = value.transpose(2, 0, 1)
                elif name in self.images and framework == "tensorflow":
                    # A class a pixel has a dimension for its one channel, and sizes are floats'.
                    value = value[..., None] if value.ndim == 2 else value.astype(np.float32)
                elif name in self.images and framework == "dali" and value.ndim == 2:
                    value = value[..., None]
                values[name] = value
            wanted.append(values)
        return wanted


def _is_text(value: Any) -> bool:
    return isinstance(value, (str, bytes)) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], str)
    )


def wide_rows(count: int) -> list[Row]:
    """Rows with what people write: every dtype, lists of any length, arrays, texts."""
    rng = np.random.default_rng(3)
    rows = []
    for i in range(count):
        row: Row = {
            "label": np.int64(i % 3),
            "small": np.uint8(200 + i % 50),
            "half": np.float16(i / 8),
            "weight": np.float64(np.float32(i / 7)),
            "truth": np.bool_(i % 2),
            "embedding": rng.normal(size=768).astype(np.float32),
            "pixels": rng.integers(0, 256, (28, 28)).astype(np.uint8),
            "tokens": rng.integers(0, 50_000, i % 5 + (i == 0)).astype(np.int64),
            "boxes": rng.random((1 + i % 4, 4)).astype(np.float32),
            "turned": rng.random((2, 1 + i % 3)).astype(np.float32),
            "text": f"row {i} ü",
            "words": [f"word {k}" for k in range(1 + i % 3)],
            "ids": list(range(i % 3)),
            "price": np.float32(i / 2),
            "count": np.int64(i),
            "vector": np.array([i, 1, 2], np.float32),
            "name": f"name {i}",
        }
        if i % 4 == 1:
            row["price"] = sw.UNSET
            row["vector"] = sw.UNSET
        if i % 5 == 2:
            del row["count"]
            row["name"] = sw.UNSET
        rows.append(row)
    return rows


WIDE_FILLS = {
    "price": np.float32("nan"),
    "vector": np.full(3, np.nan, np.float32),
    "count": np.int64(0),
    "name": "",
}
WIDE_NOT_DALI = {
    "count": "lacks a feature",
    "name": "crashes if bytes have no value",
    "words": "only the first of several strings",
}


def wide(folder: Path, name: str, out: str, **options: Any) -> Made:
    rows = wide_rows(37)
    run = sw.RunOptions(dali_index=not options)
    manifest = sw.write(rows, folder / out, run=run, **options)
    assert manifest.num_records == 37
    rows = [{**row, "weight": np.float32(row["weight"])} for row in rows]  # as it is stored
    return Made(folder, f"{name}", rows, WIDE_FILLS, WIDE_NOT_DALI)


def everything(folder: Path) -> Made:
    return wide(folder, "out/wide@4", "out/wide@4")


def gzipped(folder: Path) -> Made:
    made = wide(folder, "out/packed", "out/packed@3", compression="gzip")
    made.frameworks = ("tensorflow", "torch", "grain")
    return made


def zlibbed(folder: Path) -> Made:
    made = wide(folder, "packed", "packed@2", compression="zlib")
    made.frameworks = ("tensorflow",)
    return made


def pictures(folder: Path) -> Made:
    """Images with masks of a palette's indices, written from folders, classes by name."""
    rng = np.random.default_rng(5)
    rows = []
    for number in range(11):
        image = rng.integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8)
        mask = rng.integers(0, 20, (HEIGHT, WIDTH)).astype(np.uint8)
        rows.append({"image": image, "mask": mask, "caption": f"{number}"})
    sw.write(
        [{**r, "image": png(r["image"]), "mask": png(r["mask"])} for r in rows],
        folder / "seen@3",
        schema="image=image,mask=image",
        run=sw.RunOptions(dali_index=True),
    )
    return Made(folder, "seen", rows, images=("image", "mask"))


def palettes(folder: Path) -> Made:
    """Masks as VOC has them: a class is the number of a colour."""
    from PIL import Image

    rng = np.random.default_rng(17)
    rows: list[Row] = []
    files = []
    for _ in range(4):
        rows.append({"mask": rng.integers(0, 21, (HEIGHT, WIDTH)).astype(np.uint8)})
        picture = Image.fromarray(rows[-1]["mask"])
        picture.putpalette(rng.bytes(3 * 256))
        file = io.BytesIO()
        picture.save(file, "PNG")
        files.append({"mask": file.getvalue()})
    sw.write(files, folder / "voc@1", schema="mask=image")
    return Made(folder, "voc", rows, images=("mask",), frameworks=("torch", "grain"))


def classes(folder: Path) -> Made:
    rng = np.random.default_rng(7)
    rows = []
    names = ["ape", 'b"ee', "cät"]
    for number in range(9):
        image = rng.integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8)
        path = folder / "photos" / names[number // 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(image))
        rows.append(
            {
                "image/encoded": image,
                "image/format": "png",
                "image/height": np.int64(HEIGHT),
                "image/width": np.int64(WIDTH),
                "image/filename": f"{names[number // 3]}/{number}.png",
                "image/class/label": np.int64(number // 3),
                "image/class/text": names[number // 3],
            }
        )
    sw.write(folder / "photos", folder / "animals@2", run=sw.RunOptions(dali_index=True))
    return Made(folder, "animals@2", rows, images=("image/encoded",))


def nasty(folder: Path) -> Made:
    """Names that would end a string, a comment or a line where they are not quoted."""
    place = folder / NASTY.replace("/", "")
    rows: list[Row] = [
        {NASTY: np.int64(i), 'x"] = 1\nprint("injected")\n#': NASTY} for i in range(5)
    ]
    name = "t-{x}{0}'\""
    place.mkdir(parents=True)  # a folder that is there may be called anything
    sw.write(rows, place / f"{name}@2", run=sw.RunOptions(dali_index=True))
    return Made(folder, f"{place.name}/{name}@2", rows)


def with_gaps(folder: Path) -> Made:
    rows: list[Row] = [{"x": np.int64(i)} for i in range(40)]
    dropped = {3, 4, 17, 36, 37, 38}
    sw.write(
        rows,
        folder / "holes@4",
        map=lambda row: sw.SKIP if int(row["x"]) in dropped else row,
        run=sw.RunOptions(dali_index=True),
    )
    kept = [row for i, row in enumerate(rows) if i not in dropped]
    return Made(folder, "holes", kept, in_order=False)


def few(folder: Path) -> Made:
    rows: list[Row] = [{"x": np.float32(i), "t": str(i)} for i in range(3)]
    sw.write(rows, folder / "few@5", run=sw.RunOptions(dali_index=True))
    return Made(folder, "few@5", rows)


def lost_manifest(folder: Path) -> Made:
    """Files that somebody else has made: types are what the records tell."""
    rng = np.random.default_rng(9)
    rows: list[Row] = []
    for i in range(12):
        rows.append(
            {
                "label": np.int64(i),
                "values": rng.random(3).astype(np.float32),
                "ids": rng.integers(0, 9, 1 + i % 3).astype(np.int64),
                "text": b"text %d" % i,
                "image": rng.integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8),
                "score": np.float32(i),
            }
        )
        if i == 5:
            rows[-1]["score"] = sw.UNSET
    sw.write(
        [{**row, "image": png(row["image"])} for row in rows],
        folder / "foreign@3",
        run=sw.RunOptions(dali_index=True),
    )
    os.remove(folder / "foreign.manifest.json")
    os.remove(folder / "foreign.index")
    return Made(folder, "foreign@3", rows, {"score": np.float32("nan")}, images=("image",))


def features_absent_later(folder: Path) -> Made:
    """Files of somebody else whose first records have every feature, and later ones have none."""
    rng = np.random.default_rng(10)
    rows: list[Row] = [
        {
            "label": np.int64(i),
            "values": rng.random(3).astype(np.float32),
            "ids": rng.integers(0, 9, 1 + i % 3).astype(np.int64),
            "text": b"text %d" % i,
            "image": rng.integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8),
            "image/mask": rng.integers(0, 3, (HEIGHT, WIDTH)).astype(np.uint8),
            "number": np.int64(i),
        }
        for i in range(9)
    ]
    pictures = ("image", "image/mask")
    for number, name in enumerate(rows[0]):
        if name != "number":
            del rows[4 + number % 5][name]
    sw.write(
        [{n: png(v) if n in pictures else v for n, v in row.items()} for row in rows],
        folder / "later@3",
    )
    os.remove(folder / "later.manifest.json")
    os.remove(folder / "later.index")
    fills: Row = {
        "label": np.int64(0),
        "values": np.full(3, np.nan, np.float32),
        "ids": np.zeros(0, np.int64),
        "text": b"",
        "image": np.zeros((HEIGHT, WIDTH, 3), np.uint8),
        "image/mask": np.zeros((HEIGHT, WIDTH), np.uint8),
    }
    frameworks = ("tensorflow", "torch", "grain")
    return Made(
        folder, "later@3", rows, fills, images=pictures, frameworks=frameworks, num_records=4
    )


def raw_arrays(folder: Path) -> Made:
    """Arrays whose bytes are one value, as a schema may tell."""
    rng = np.random.default_rng(13)
    rows: list[Row] = [
        {
            "depth": rng.random((3, 5)).astype(np.float32),
            "mask": rng.integers(0, 9, (4, 2)).astype(np.uint16),
            "steps": rng.integers(0, 1 << 40, (1 + i % 3, 2)).astype(np.int64),
            "some": rng.random(2).astype(np.float64),
        }
        for i in range(7)
    ]
    del rows[4]["some"]
    sw.write(
        [{n: v.astype(v.dtype.newbyteorder("<")).tobytes() for n, v in r.items()} for r in rows],
        folder / "arrays@2",
        run=sw.RunOptions(dali_index=True),
    )
    path = folder / "arrays.manifest.json"
    manifest = json.loads(path.read_text())
    for name, shape in {"depth": [3, 5], "mask": [4, 2], "steps": [None, 2], "some": [2]}.items():
        entry = manifest["schema"]["features"][name]
        entry |= {"encoding": "raw", "dtype": rows[0][name].dtype.name, "shape": shape}
    path.write_text(json.dumps(manifest))
    return Made(folder, "arrays", rows, {"some": np.zeros(2)}, no_dali={"some": "lacks a feature"})


def shaped(folder: Path) -> Made:
    """Arrays of which several dimensions vary: their shapes stand beside them."""
    rng = np.random.default_rng(19)
    rows: list[Row] = [
        {
            "pixels": rng.integers(0, 256, (2 + i % 3, 3 + i % 2, 3)).astype(np.uint8),
            "heat": rng.random((1 + i % 2, 1 + i % 4)).astype(np.float32),
            "mask": rng.integers(0, 2, (2 + i % 2, 1 + i % 3)).astype(np.uint8),
            "crop": rng.integers(0, 9, (1 + i % 2, 2 + i % 3)).astype(np.int64),
        }
        for i in range(9)
    ]
    del rows[4]["crop"]
    sw.write(
        rows,
        folder / "odd@2",
        schema={
            "pixels": "uint8[null,null,3]",
            "heat": "float32[null,null]",
            "mask": "raw:uint8[null,null]",
            "crop": "int64[null,null]",
        },
        run=sw.RunOptions(dali_index=True),
    )
    no_dali = {"crop": "lacks a feature"}
    return Made(folder, "odd", rows, {"crop": np.zeros((0, 0), np.int64)}, no_dali)


def some_without_a_picture(folder: Path) -> Made:
    """What can not be decoded in every record stays the bytes of a file."""
    data = png(np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    rows: list[Row] = [{"x": np.int64(i), "image": data} for i in range(4)]
    del rows[2]["image"]
    rows[3]["image"] = b"GIF89a, as far as it matters here"
    sw.write(rows, folder / "seldom@2", schema="image=image", run=sw.RunOptions(dali_index=True))
    return Made(folder, "seldom", rows, {"image": b""}, no_dali={"image": "lacks a feature"})


def one_file(folder: Path) -> Made:
    rows: list[Row] = [{"x": np.int64(i)} for i in range(6)]
    sw.write(rows, folder / "alone@1", run=sw.RunOptions(dali_index=True))
    path = folder / "any.tfrecord"
    shutil.move(folder / "alone.tfrecord-00000-of-00001", path)
    shutil.move(folder / "alone.tfrecord-00000-of-00001.idx", f"{path}.idx")
    return Made(folder, "any.tfrecord", rows)


SETS: dict[str, Callable[[Path], Made]] = {
    f.__name__: f
    for f in (
        everything,
        gzipped,
        zlibbed,
        pictures,
        palettes,
        classes,
        nasty,
        with_gaps,
        few,
        lost_manifest,
        features_absent_later,
        raw_arrays,
        shaped,
        some_without_a_picture,
        one_file,
    )
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    pytest.importorskip("PIL", reason="Pillow is not installed")
    folder = tmp_path_factory.mktemp("sets")
    found = {}
    for name, make in SETS.items():
        (folder / name).mkdir()
        found[name] = make(folder / name)
    return found


@pytest.fixture
def here() -> Iterator[Callable[[Path], None]]:
    """Go to a folder, and back."""
    before = os.getcwd()
    yield os.chdir
    os.chdir(before)


def python_of(framework: str) -> str:
    if framework == "tensorflow":
        pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
        return sys.executable
    return peers_python()


def run_programs(framework: str, asked: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [python_of(framework), PEERS / "loader_program.py", framework],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env=os.environ
        | {
            "CUDA_VISIBLE_DEVICES": "",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONPATH": str(Path(sw.__file__).parent.parent),
        },
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def check_style(program: Path) -> None:
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent))
    if ruff is None:
        return
    options = ["--isolated", "--no-cache"]
    done = subprocess.run(
        [ruff, "format", "--diff", *options, program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    rules = ["--select", "F,E,W,I,B,UP", "--ignore", "E501,B905"]
    done = subprocess.run(
        [ruff, "check", *options, *rules, program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("framework", ["tensorflow", "torch", "grain", "dali"])
def test_the_program_reads_what_was_written(
    framework: Framework, made: dict[str, Made], here: Callable[[Path], None]
) -> None:
    python_of(framework)
    asked = {}
    for name, one in made.items():
        if framework not in one.frameworks:
            continue
        here(one.folder)
        text = sw.loader_code(one.path, framework, num_records=one.num_records)
        program = one.folder / f"read_{framework}.py"
        program.write_text(text, encoding="utf-8")
        check_style(program)
        if framework == "dali":
            for feature, reason in one.no_dali.items():
                assert f'"{feature}" is left out' in text
                assert reason in text.replace("\n# ", " ")
        # So that a picture is compared as it is: all have this size.
        small = text.replace("IMAGE_SIZE = (224, 224)", f"IMAGE_SIZE = ({HEIGHT}, {WIDTH})")
        assert (small != text) == bool(one.images)
        program.write_text(small, encoding="utf-8")
        asked[name] = {
            "program": str(program),
            "folder": str(one.folder),
            "texts": one.texts,
        }
    answers = run_programs(framework, asked)
    wrong = {}
    for name, got in answers.items():
        expected = digests(made[name].expected(framework))
        if framework == "dali" or not made[name].in_order:
            expected.sort()
            got.get("digests", []).sort()
        if got.get("digests") != expected:
            wanted = {n: repr(v)[:80] for n, v in made[name].expected(framework)[0].items()}
            wrong[name] = {**got, "digests": len(got.get("digests", [])), "wanted": wanted}
        else:
            assert "injected" not in got["printed"].replace('print("injected")', "")
            assert got["printed"].count("\n") >= len(made[name].expected(framework)[0])
    assert not wrong, "\n".join(str(v.get("error", (n, v))) for n, v in wrong.items())


@pytest.mark.parametrize("framework", ["tensorflow", "torch", "grain", "dali"])
def test_the_program_reads_real_annotated_images(
    framework: Framework, tmp_path: Path, data_dir: Path, here: Callable[[Path], None]
) -> None:
    python_of(framework)
    source = data_dir / "cvat-ai+datumaro/tests/assets/coco_dataset/coco"
    source = source / "annotations" / "instances_train.json"
    sw.write(source, tmp_path / "coco@2", run=sw.RunOptions(dali_index=True))
    here(tmp_path)
    program = tmp_path / "read.py"
    program.write_text(sw.loader_code("coco", framework), encoding="utf-8")
    check_style(program)
    rows = list(sw.open("coco"))
    assert rows
    features = sw.open("coco").features
    texts = [name for name, feature in features.items() if feature.type.kind == "bytes"]
    asked = {"program": str(program), "folder": str(tmp_path), "texts": texts}
    got = run_programs(framework, {"coco": asked})["coco"]
    assert "error" not in got, got["error"]
    assert len(got["digests"]) == len(rows)
    labels = {str(row["image/object/class/label"].tolist()) for row in rows}
    first = got["rows"][0]["image/object/class/label"]
    assert any(label.strip("[]") in first for label in labels)


def test_what_dali_can_not_read_is_said(made: dict[str, Made], tmp_path: Path) -> None:
    gzip = made["gzipped"]
    with pytest.raises(OptionError, match="DALI reads no gzip shards") as refused:
        sw.loader_code(gzip.folder / gzip.path, "dali")
    assert "--compression none" in str(refused.value.hint)
    sw.write([{"x": 1}], tmp_path / "t@2")
    with pytest.raises(OptionError, match=r"a \.idx file beside every shard") as refused:
        sw.loader_code(tmp_path / "t", "dali")
    command = str(refused.value.hint).split("`")[1].split()
    assert command[-1] == "--idx"
    done = CliRunner().invoke(app, command[1:])
    assert done.exit_code == 0, done.output
    assert "FixedLen" in sw.loader_code(tmp_path / "t", "dali")
    sw.write([{"x": ["a", "b"]}], tmp_path / "u@1", run=sw.RunOptions(dali_index=True))
    with pytest.raises(OptionError, match="none of its features: DALI reads only the first"):
        sw.loader_code(tmp_path / "u", "dali")


@pytest.mark.parametrize("framework", ["tensorflow", "torch", "grain", "dali"])
def test_the_program_says_how_many_records_its_types_come_from(
    framework: Framework, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    sw.write([{"x": i} for i in range(9)], f"{path}@1", run=sw.RunOptions(dali_index=True))
    os.remove(f"{path}.manifest.json")
    os.remove(f"{path}.index")
    sampled = sw.loader_code(path, framework, num_records=4).replace("\n# ", " ")
    assert "inferred from the first 4 records" in sampled
    assert "--records 9 reads all of them" in sampled
    assert ("gets a default" in sampled) == (framework != "dali")
    assert "inferred from all records" in sw.loader_code(path, framework)


def test_many_files_are_not_all_open_at_once(tmp_path: Path) -> None:
    sw.write([{"x": 1}], tmp_path / "t@300")
    text = sw.loader_code(tmp_path / "t", "tensorflow")
    assert "cycle_length=16," in text
    assert "-of-00300" in text
    assert "order in which they were written" not in text


@pytest.mark.parametrize("framework", ["tensorflow", "torch", "grain", "dali"])
@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "int64)\nprint('injected')\n("},
        {"shape": ["1]\nprint('injected')\n["]},
        {"kind": "float\nprint('injected')"},
        {"vocabulary": [7]},
    ],
)
def test_a_manifest_can_not_put_code_into_a_program(
    tmp_path: Path, framework: Framework, entry: Row
) -> None:
    sw.write([{"x": 1}], tmp_path / "t@1", run=sw.RunOptions(dali_index=True))
    path = tmp_path / "t.manifest.json"
    manifest = json.loads(path.read_text())
    manifest["schema"]["features"]["x"] |= entry
    path.write_text(json.dumps(manifest))
    refusal = r"its type in the schema is not valid|the manifest can not be used"
    with pytest.raises(ManifestError, match=refusal):
        sw.loader_code(tmp_path / "t", framework)


@given(text=st.text(max_size=40))
@example(text=NASTY)
@example(text="both ' and \"")
@example(text="\udc80\r\n\u2028\x00'''")
def test_a_text_is_one_literal_on_one_line(text: str) -> None:
    source = quoted(text)
    assert ast.literal_eval(source) == text
    assert len(source.splitlines()) == 1
    (line,) = comment(quoted(text).replace(" ", "_"))
    assert line.startswith("# ")


def test_there_is_nothing_to_write_code_for(tmp_path: Path) -> None:
    sw.write([], tmp_path / "none@2")
    with pytest.raises(SourceError, match="there are no records"):
        sw.loader_code(tmp_path / "none", "torch")
    sw.write([{"x": []}], tmp_path / "unset@1")
    with pytest.raises(SourceError, match="no features"):
        sw.loader_code(tmp_path / "unset", "torch")
    with pytest.raises(OptionError, match="no code for 'jax'"):
        sw.loader_code(tmp_path / "none", "jax")  # type: ignore[arg-type]
