"""Files beside the data made to hurt: TFDS's and Hugging Face's JSON, ``.idx``, lists of errors."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hostile import attempt, check_answer, content, make_dataset, write_command

import shardwriter as sw

DEEP = "[" * 50_000 + "]" * 50_000
HUGE = "9" * 100_000


def answer(folder: Path, *command: str) -> tuple[int, str]:
    """Run a command, check its answer, and that nothing outside of ``out`` has changed."""
    before = content(folder)
    code, stderr = attempt(command)
    check_answer(command, code, stderr)
    shutil.rmtree(folder / "out", ignore_errors=True)
    assert content(folder) == before
    return code, stderr


# -- .idx of DALI and the tfrecord package ---------------------------------------------------------

TABLES = {
    "empty": b"",
    "a text": b"hello world\n",
    "not UTF-8": b"\xff\xfe 1\n",
    "NUL": b"0 \0 100\n",
    "one number": b"17\n",
    "three numbers in a line": b"0 43 5\n",
    "negative numbers": b"-5 100\n",
    "a size of 0": b"0 0\n0 0\n",
    "a size of 2^63": b"0 9223372036854775808\n",
    "a size of 2^64": b"0 18446744073709551616\n",
    "sizes that overflow": b"0 9223372036854775807\n9223372036854775807 9223372036854775807\n",
    "a number of 10^5 digits": b"0 " + HUGE.encode() + b"\n",
    "floats": b"0.5 1e9\n",
    "offsets that go back": b"0 50\n30 20\n",
    "offsets with a hole": b"0 50\n80 20\n",
    "behind the file": b"0 1000000000000\n",
    "many lines without an end": b"0 17\n" * 10_000,
    "a compressed table": b"\x1f\x8b\x08\x00" + bytes(64),
    "control characters": b"\x1b]0;title\x07 1\n",
    "an index of ours": b"SWINDEX1" + b"\xff" * 64,
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("good"))


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    shutil.copytree(good, tmp_path / "d")
    return tmp_path / "d"


@pytest.mark.parametrize("with_manifest", [True, False])
@pytest.mark.parametrize("case", TABLES)
def test_a_hostile_table_is_a_finding(folder: Path, case: str, with_manifest: bool) -> None:
    shard = folder / "in" / "t.tfrecord-00001-of-00003"
    Path(f"{shard}.idx").write_bytes(TABLES[case])
    if not with_manifest:
        (folder / "in" / "t.manifest.json").unlink()
    name = str(folder / "in" / "t")
    code, _ = answer(folder, "shard-stats", name)
    assert code == (0 if case == "an index of ours" else 1)
    for command in (["show", name], ["find", name, "a=7"], ["schema", name], ["open", name]):
        assert answer(folder, *command)[0] == 0
    assert answer(folder, "repair", name, str(folder / "out"))[0] in (0, 1)
    # A table tells how a damaged shard was, and is not trusted there either.
    shard.write_bytes(shard.read_bytes()[:40] + b"\xff" * 30)
    assert answer(folder, "shard-stats", name)[0] == 1
    assert answer(folder, "repair", name, str(folder / "out"))[0] == 1


# -- lists of errors -------------------------------------------------------------------------------

LEDGERS = {
    "a text": "hello\n",
    "a list": "[1]\n",
    "deep": DEEP + "\n",
    "without an index": '{"error":"X"}\n',
    "an index that is a text": '{"index":"4"}\n',
    "an index that is a list": '{"index":[4]}\n',
    "a negative index": '{"index":-1}\n',
    "an index of 2^63": '{"index":9223372036854775808}\n',
    "an index behind the items": '{"index":1000000000000}\n',
    "an index that has a record": '{"index":7}\n',
    "not ASCII": '{"index":4,"message":"é"}\n',
    "control characters": "\x1b[2J\n",
}


def test_a_table_that_is_a_fifo_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "in" / "t.tfrecord-00000-of-00003.idx")
    code, stderr = attempt(["shard-stats", str(folder / "in" / "t")])
    assert code in (0, 1), stderr


@pytest.mark.parametrize("case", LEDGERS)
def test_a_hostile_list_of_errors_is_refused(folder: Path, case: str) -> None:
    (folder / "in" / "t.errors.jsonl").write_text(LEDGERS[case], encoding="utf-8")
    for option in ("--resume", "--retry-errors"):
        code, stderr = answer(folder, *write_command(folder), option)
        assert code == 1
        assert "t.errors.jsonl: " in stderr
    for command in ("verify", "shard-stats", "show", "schema", "open"):
        assert answer(folder, command, str(folder / "in" / "t"))[0] == 0


# -- TFDS ------------------------------------------------------------------------------------------

TFDS: dict[str, str] = {
    "empty": "",
    "a list": "[]",
    "deep": DEEP,
    "deep in splits": '{"name":"demo","splits":' + DEEP + "}",
    "a huge number": '{"name":"demo","splits":[{"name":"train","shardLengths":[' + HUGE + "]}]}",
    "2^70 records": '{"name":"demo","splits":[{"name":"train","shardLengths":["1180591620717"]}]}',
    "negative records": '{"name":"demo","splits":[{"name":"train","shardLengths":[-4]}]}',
    "records are an object": '{"name":"demo","splits":[{"name":"train","shardLengths":{}}]}',
    "splits are a text": '{"name":"demo","splits":"train"}',
    "a split is a text": '{"name":"demo","splits":["train"]}',
    "a split's name leads out": '{"name":"demo","splits":[{"name":"../x","shardLengths":[3]}]}',
    "a split's name has NUL": '{"name":"demo","splits":[{"name":"a\\u0000b","shardLengths":[3]}]}',
    "a split's name is half a character": (
        '{"name":"demo","splits":[{"name":"\\ud800","shardLengths":[3]}]}'
    ),
    "a template is a list": (
        '{"name":"demo","splits":[{"name":"train","shardLengths":[3],"filepathTemplate":["a"]}]}'
    ),
    "a name with control characters": '{"name":"\\u001b]0;x\\u0007","splits":[]}',
    "a key twice": '{"name":"demo","name":"other","splits":[]}',
    "a file format of numbers": '{"name":"demo","fileFormat":7}',
    "NaN": '{"name":"demo","x":NaN}',
}


@pytest.fixture(scope="module")
def tfds_good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tfds")
    (folder / "t.csv").write_text("a,b\n" + "".join(f"{i},x{i}\n" for i in range(12)))
    command = ["write", str(folder / "t.csv"), str(folder / "in" / "train@3"), "-j", "1"]
    assert attempt([*command, "--tfds", "demo:1.0.0"])[0] == 0
    return folder


@pytest.mark.parametrize("file_name", ["dataset_info.json", "features.json"])
@pytest.mark.parametrize("case", TFDS)
def test_hostile_metadata_of_tfds_hurts_no_command(
    tfds_good: Path, tmp_path: Path, case: str, file_name: str
) -> None:
    folder = tmp_path / "d"
    shutil.copytree(tfds_good, folder)
    place = folder / "in" / "demo" / "1.0.0"
    (place / file_name).write_text(TFDS[case])
    for command in ("verify", "shard-stats", "show", "schema", "open"):
        code, _ = answer(folder, command, str(place))
        assert code in (0, 1)
    source = str(folder / "t.csv")
    write = ["write", source, str(folder / "in" / "val@2"), "-j", "1", "--tfds", "demo:1.0.0"]
    code, stderr = attempt(write)
    check_answer(write, code, stderr)
    assert code in (0, 2)
    if code == 0:  # what is there of the other split is what it was
        assert sw.verify(place / "demo-train").num_defects == 0


def test_features_json_names_no_file_elsewhere(tfds_good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "d"
    shutil.copytree(tfds_good, folder)
    place = folder / "in" / "demo" / "1.0.0"
    (folder / "in" / "x.labels.txt").write_text("precious")
    names = ["../x", "..", "a\0b", "\ud800", "../../x"]
    features = {name: {"classLabel": {}} for name in names}
    (place / "features.json").write_text(json.dumps({"featuresDict": {"features": features}}))
    write = ["write", str(folder / "t.csv"), str(folder / "in" / "train@3"), "-j", "1"]
    code, stderr = attempt([*write, "--tfds", "demo:1.0.0", "--overwrite"])
    assert code == 0, stderr
    assert (folder / "in" / "x.labels.txt").read_text() == "precious"


# -- Hugging Face ----------------------------------------------------------------------------------


def state(*names: Any, **more: Any) -> str:
    return json.dumps({"_data_files": [{"filename": name} for name in names], **more})


STATES: dict[str, tuple[str, str]] = {
    "empty": ("", "Expecting value"),
    "a list": ("[]", "Expected `object`"),
    "deep": (DEEP, "is nested too deeply"),
    "deep behind a key": ('{"_data_files":' + DEEP + "}", "is nested too deeply"),
    "not UTF-8": ("\udcff", "can't decode"),
    "no files": ('{"_data_files": []}', "length >= 1"),
    "files are a text": ('{"_data_files": "a"}', "Expected `array`"),
    "a file is a text": ('{"_data_files": ["a"]}', "Expected `object`"),
    "a file's name is a number": (state(5), "Expected `str`"),
    "a file's name is empty": (state(""), "leads out of the folder"),
    "above": (state("../secret.arrow"), "leads out of the folder"),
    "above, by a detour": (state("a/../../secret.arrow"), "leads out of the folder"),
    "absolute": (state("/etc/passwd"), "leads out of the folder"),
    "a URL": (state("gs://bucket/x.arrow"), "leads out of the folder"),
    "the folder itself": (state("."), "leads out of the folder"),
    "NUL": (state("a\0b.arrow"), "has a NUL character"),
    "half a character": (state("\ud800.arrow"), "is not valid text"),
    "a link to a file outside": (state("link.arrow"), "is a link to a file outside"),
    "a folder that is a link out": (state("linked/secret.arrow"), "is a link to a file outside"),
    "columns are a number": (state("a.arrow", _format_columns=3), "Expected `array | null`"),
    "a format is an object": (state("a.arrow", _format_type={}), "Expected `str | null`"),
    "a key twice": ('{"_data_files": [], "_data_files": []}', "appears twice"),
}


@pytest.mark.parametrize("case", STATES)
def test_a_hostile_state_json_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    saved = tmp_path / "saved"
    saved.mkdir()
    secret = tmp_path / "secret.arrow"
    with pa.ipc.new_stream(secret, pa.schema([("x", pa.int64())])) as stream:
        stream.write_table(pa.table({"x": [1, 2, 3]}))
    shutil.copy(secret, saved / "a.arrow")
    os.symlink(secret, saved / "link.arrow")
    os.symlink(tmp_path, saved / "linked")
    (saved / "dataset_info.json").write_text("{}")
    text, why = STATES[case]
    (saved / "state.json").write_bytes(text.encode(errors="surrogateescape"))
    command = ["write", str(saved), str(tmp_path / "out" / "t@2"), "-j", "1"]
    code, stderr = attempt(command)
    check_answer(command, code, stderr)
    assert code == 1
    assert why in stderr
    assert not list(tmp_path.glob("out/*"))


def test_a_file_name_with_nul_in_a_table_is_an_error_of_its_item(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    saved = tmp_path / "saved"
    saved.mkdir()
    fields = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    names = pa.array([{"bytes": None, "path": "a\0b.jpg"}], fields)
    features = {"info": {"features": {"image": {"_type": "Image"}}}}
    table = pa.table({"image": names})
    table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    with pa.ipc.new_stream(saved / "a.arrow", table.schema) as stream:
        stream.write_table(table)
    (saved / "state.json").write_text(state("a.arrow"))
    (saved / "dataset_info.json").write_text("{}")
    command = ["write", str(saved), str(tmp_path / "out" / "t@1"), "-j", "1"]
    code, stderr = attempt(command)
    check_answer(command, code, stderr)
    assert code == 1
    assert "file names cannot contain NUL" in stderr


@pytest.mark.parametrize(
    "metadata",
    ["", DEEP, '{"info":' + DEEP + "}", '{"info":{"features":[]}}', '{"info":{"features":{"x":3}}}',
     '{"info":{"features":{"x":{"_type":"ClassLabel","names":[[1],2]}}}}'],
)  # fmt: skip
def test_hostile_metadata_of_a_table_is_left_alone(tmp_path: Path, metadata: str) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"x": [1, 2]}).replace_schema_metadata({"huggingface": metadata})
    parquet.write_table(table, tmp_path / "t.parquet")
    command = ["write", str(tmp_path / "t.parquet"), str(tmp_path / "out" / "t@1"), "-j", "1"]
    assert attempt(command)[0] == 0


# -- reports and schemas that are given by name ----------------------------------------------------

REPORT = {"schema": "shardwriter.stats/1", "num_records": 16, "name": "t"}
BASELINES: dict[str, Any] = {
    "sets are a text": {**REPORT, "sets": "x"},
    "sets are numbers": {**REPORT, "sets": [1]},
    "counts are texts": {**REPORT, "num_records": "16"},
    "counts are negative": {**REPORT, "num_records": -1},
    "defects are a list": {**REPORT, "num_defects": [1]},
    "labels are a list": {**REPORT, "labels": [1]},
    "label counts are texts": {**REPORT, "labels": {"counts": {"cat": "x"}}},
    "features are a list": {**REPORT, "features": ["a"]},
    "a feature is a text": {**REPORT, "features": {"a": "int64"}},
    "numbers have no count": {**REPORT, "features": {"a": {"numbers": {"mean": 1}}}},
    "a mean is a text": {**REPORT, "features": {"a": {"numbers": {"count": 1, "mean": "x"}}}},
    "a quantile's level is a text": {
        **REPORT, "features": {"a": {"numbers": {"count": 1, "quantiles": {"x": 1}}}}
    },
    "lengths are a number": {**REPORT, "features": {"a": {"lengths": 3}}},
    "images are a list": {**REPORT, "features": {"a": {"images": [1]}}},
    "kinds are a list": {**REPORT, "kinds": [1]},
    "compressions are numbers": {**REPORT, "compressions": [1]},
}  # fmt: skip


@pytest.mark.parametrize("case", BASELINES)
def test_a_hostile_baseline_is_refused_in_one_line(folder: Path, case: str) -> None:
    path = folder / "baseline.json"
    path.write_text(json.dumps(BASELINES[case]))
    name = str(folder / "in" / "t")
    code, stderr = answer(folder, "shard-stats", name, "--baseline", str(path))
    assert code == 2
    assert f"{path}: the baseline is not a report of shard-stats: " in stderr


ODD_BASELINES: dict[str, Any] = {
    "more present than records": {
        **REPORT, "features": {"a": {"present": 2**62, "unset": 2**61, "num_records": 3}}
    },
    "more NaN than values": {
        **REPORT, "features": {"a": {"numbers": {"count": 1, "num_nan": 2**62, "num_inf": 9}}}
    },
    "counts of 2^62": {
        **REPORT, "num_records": 2**62, "labels": {"counts": {"cat": 2**62}, "feature": "label"}
    },
    "numbers at the end of floats": {
        **REPORT,
        "features": {
            "a": {
                "numbers": {
                    "count": 9, "mean": 1e308, "std": 1e308, "min": -1e308, "max": 1e308,
                    "quantiles": {"0.5": 1e308, "0.99999": -1e308},
                }
            }
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("case", ODD_BASELINES)
def test_an_odd_baseline_hurts_nobody(folder: Path, case: str) -> None:
    path = folder / "baseline.json"
    path.write_text(json.dumps(ODD_BASELINES[case]))
    name = str(folder / "in" / "t")
    options = ["--features", "--label", "label", "--baseline", str(path)]
    assert answer(folder, "shard-stats", name, *options)[0] in (0, 1)


SCHEMAS = {
    "deep": DEEP,
    "deep behind a key": '{"a":' + DEEP + "}",
    "a list": "[1]",
    "a text": '"int64"',
    "types are numbers": '{"a": 3}',
    "types are lists": '{"a": ["int64"]}',
    "a kind is a list": '{"a": {"kind": ["int64"]}}',
    "a dtype is an object": '{"a": {"dtype": {}}}',
    "an encoding is a list": '{"a": {"dtype": "int64", "encoding": ["raw"]}}',
    "a shape is a text": '{"a": {"dtype": "int64", "shape": "3"}}',
    "a vocabulary of numbers": '{"a": {"dtype": "int64", "vocabulary": [1]}}',
    "features are a list": '{"format": "shardwriter.manifest/1", "schema": [1]}',
    "the schema is a text": '{"format": "shardwriter.manifest/1", "schema": "x"}',
    "feature lists": '{"features": {}, "feature_lists": [1]}',
    "a huge number": '{"a": {"dtype": "int64", "shape": [' + HUGE + "]}}",
    "not UTF-8": "\udcff",
}


@pytest.mark.parametrize("case", SCHEMAS)
def test_a_hostile_schema_file_is_refused_in_one_line(folder: Path, case: str) -> None:
    path = folder / "schema.json"
    path.write_bytes(SCHEMAS[case].encode(errors="surrogateescape"))
    command = ["write", str(folder / "t.csv"), str(folder / "out" / "t@2"), "-j", "1"]
    code, stderr = answer(folder, *command, "--schema", str(path))
    assert code == 2, stderr
    assert str(path) in stderr
