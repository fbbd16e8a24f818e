"""Datasets of Hugging Face as a source: run where ``datasets`` is, by test_peer_sources.py."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import (
    Array2D,
    Audio,
    ClassLabel,
    Dataset,
    DatasetDict,
    Features,
    Image,
    List,
    Value,
    load_from_disk,
)

import shardwriter as sw
from shardwriter.errors import CallableError, FeatureError, OptionError, SourceError
from shardwriter.sources.find import open_source
from shardwriter.sources.huggingface import HuggingFaceTable
from shardwriter.writing.options import RunOptions

datasets.disable_progress_bars()


def gif(width: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, 3) + b"\0\0\0;"


FEATURES = Features(
    {
        "id": Value("int32"),
        "score": Value("float64"),
        "name": Value("string"),
        "label": ClassLabel(names=["cat", "dog", "eel"]),
        "picture": Image(),
        "sound": Audio(),
        "boxes": List(List(Value("float32"), length=4)),
        "words": List(Value("string")),
        "grid": Array2D(shape=(2, 3), dtype="int16"),
        "flag": Value("bool"),
    }
)


def rows(num_rows: int) -> dict[str, list]:
    ids = range(num_rows)
    return {
        "id": list(ids),
        "score": [None if i % 5 == 0 else i / 8 for i in ids],
        "name": [None if i % 7 == 3 else f"é{i}" for i in ids],
        "label": [i % 3 for i in ids],
        "picture": [{"bytes": gif(i + 1), "path": f"{i}.gif"} for i in ids],
        "sound": [{"bytes": b"RIFF" + bytes([i % 256]), "path": None} for i in ids],
        "boxes": [[[i, 0.5, 1, 2]] * (i % 3) for i in ids],
        "words": [["a", str(i)][: i % 3] for i in ids],
        "grid": [[[i, 1, 2], [3, 4, 5]] for i in ids],
        "flag": [i % 2 == 0 for i in ids],
    }


def dataset(columns: dict[str, list]) -> Dataset:
    """Make a dataset; a sound that is only copied is cast, since encoding one needs a codec."""
    stored = {"bytes": Value("binary"), "path": Value("string")}
    made = Dataset.from_dict(columns, features=Features({**FEATURES, "sound": stored}))
    return made.cast_column("sound", Audio())


@pytest.fixture(scope="module")
def in_memory() -> Dataset:
    return dataset(rows(101))


@pytest.fixture(scope="module")
def folder(in_memory, tmp_path_factory):
    path = tmp_path_factory.mktemp("hf") / "saved"
    in_memory.save_to_disk(path, num_shards=3)
    return path


def written(source, path, **options):
    """Write a source, and return the bytes of all its shards."""
    out = path / f"t{len(os.listdir(path))}"
    manifest = sw.write(source, out / "d@4", **options)
    return [(out / shard).read_bytes() for shard in sorted(os.listdir(out)) if "-of-" in shard] + [
        manifest.schema
    ]


def all_ways(source, path, **options):
    """Write a source in one process and in several, and return the bytes, which are the same."""
    serial = written(source, path, **options)
    assert written(source, path, workers=2, **options) == serial
    return serial


def records(source, path, **options):
    out = path / f"r{len(os.listdir(path))}"
    sw.write(source, out / "d@4", **options)
    return list(sw.open(out / "d"))


# -- what is found ---------------------------------------------------------------------------------


def test_all_forms_of_a_table_give_the_same_bytes(in_memory, folder, tmp_path):
    pq.write_table(in_memory.data.table, tmp_path / "t.parquet")
    (tmp_path / "out").mkdir()
    out = tmp_path / "out"
    expected = all_ways(in_memory, out)
    assert written(load_from_disk(folder), out) == expected
    assert all_ways(str(folder), out) == expected
    assert written(tmp_path / "t.parquet", out) == expected
    shuffled = all_ways(load_from_disk(folder), out, shuffle_seed=5)
    assert shuffled == written(folder, out, shuffle_seed=5) != expected


def test_types_classes_and_files_are_known_before_the_first_row(in_memory, folder):
    for source in (open_source(in_memory), open_source(str(folder))):
        assert source.kind == "huggingface"
        assert source.vocabularies == {"label": ["cat", "dog", "eel"]}
        assert source.label == "label"
        plan = source.plan
        assert (plan["picture"].kind, plan["picture"].encoding) == ("bytes", "image")
        assert plan["boxes"].shape == (None, 4)
        assert plan["grid"].shape == (2, 3)
        row = source.load(source.item(4))
        assert row["picture"] == gif(5)
        assert row["sound"] == b"RIFF\x04"
        assert row["grid"].tolist() == [[4, 1, 2], [3, 4, 5]]


def test_it_is_the_plain_python_route_where_types_agree(tmp_path):
    columns = {"x": list(range(40)), "y": [[i, 2 * i] for i in range(40)], "z": list("abcd") * 10}
    plain = [{"x": i, "y": [i, 2 * i], "z": "abcd"[i % 4]} for i in range(40)]
    assert written(Dataset.from_dict(columns), tmp_path)[:4] == written(plain, tmp_path)[:4]


def test_the_indices_of_a_dataset_are_obeyed(folder, in_memory, tmp_path):
    for data in (load_from_disk(folder), in_memory):
        for chosen in (
            data.shuffle(seed=3),
            data.select([5, 1, 1, 100]),
            data.select(range(7, 30)),
            data.filter(lambda number: number % 10 == 3, input_columns=["id"]),
            data.shuffle(seed=1).select(range(10)),
            datasets.concatenate_datasets([data.select([3, 1]), data.select([7])]),
        ):
            ids = [record["id"] for record in records(chosen, tmp_path)]
            assert ids == list(chosen.select_columns(["id"])["id"])
    few = data.select([5, 1, 1, 100])
    digests = {json.dumps(open_source(d).digest()) for d in (few, data.select([5, 1, 100, 1]))}
    assert len(digests) == 2


def test_columns_that_were_left_out_or_renamed_are(in_memory, tmp_path):
    changed = in_memory.remove_columns(["picture", "sound"]).rename_column("id", "number")
    changed = changed.with_format(columns=["number", "label"])
    assert [set(r) for r in records(changed.select([4]), tmp_path)] == [{"number", "label"}]


def test_a_table_in_memory_is_mapped_by_workers_and_not_copied_into_each(tmp_path):
    data = Dataset.from_dict({"x": [np.full(1000, i, np.int64) for i in range(10_000)]})
    assert data.data.nbytes > 64 << 20
    source = HuggingFaceTable(data)
    from shardwriter.writing.messages import pack, unpack

    parcel, descriptors = pack(source, 1 << 20)
    again = unpack(parcel, [os.dup(number) for number in descriptors])
    assert again.load(9_999)["x"].tolist() == [9_999] * 1000
    assert again.digest() == source.digest()
    notes = []
    sw.write(data.select(range(50)), tmp_path / "t@2", workers=2, notify=notes.append)
    assert notes == []


def test_a_table_in_files_is_sent_as_their_names(folder):
    loaded = load_from_disk(folder)
    mixed = loaded.add_column("more", list(range(len(loaded))))
    for data in (loaded, mixed, datasets.concatenate_datasets([loaded, loaded])):
        source = HuggingFaceTable(data)
        sent = pickle.dumps(source)
        assert len(sent) < 20_000
        again = pickle.loads(sent)
        for i in (0, 100, source.num_items - 1):
            one, other = source.load(i), again.load(i)
            assert sw.encode_example(one) == sw.encode_example(other)


def test_files_that_are_only_named_are_read_where_items_are_loaded(tmp_path):
    paths = []
    for i in range(70):
        paths.append(str(tmp_path / f"{i}.gif"))
        (tmp_path / f"{i}.gif").write_bytes(gif(i + 1))
    data = Dataset.from_dict({"picture": paths}, features=Features({"picture": Image()}))
    data.save_to_disk(tmp_path / "saved")
    (tmp_path / "out").mkdir()
    given = [{"picture": gif(i + 1)} for i in range(70)]
    expected = written(given, tmp_path / "out", schema="picture=image")[:4]
    assert open_source(data).block_items == 32
    assert all_ways(data, tmp_path / "out")[:4] == expected
    assert written(tmp_path / "saved", tmp_path / "out")[:4] == expected  # it takes the files in
    (tmp_path / "5.gif").unlink()
    with pytest.raises(SourceError, match=r"5\.gif.*can not be read: No such file") as caught:
        sw.write(data, tmp_path / "failed@2")
    assert (caught.value.index, caught.value.feature) == (5, "picture")
    manifest = sw.write(data, tmp_path / "skipped@2", on_error="skip", workers=2)
    assert list(manifest.gaps) == [5]


def test_the_digest_is_that_of_the_content(folder, tmp_path):
    data = load_from_disk(folder)
    other = dataset(rows(101))
    assert open_source(data).digest() == open_source(other).digest()
    changed = rows(101)
    changed["name"][0] = "other"
    other = dataset(changed)
    assert open_source(data).digest() != open_source(other).digest()
    pieces = {json.dumps(open_source(data.select(range(n, n + 10))).digest()) for n in range(3)}
    assert len(pieces) == 3


# -- what is not a table ---------------------------------------------------------------------------


def test_a_transform_is_asked_for(folder, tmp_path):
    data = load_from_disk(folder).select_columns(["id", "name"])
    data.set_transform(lambda batch: {"twice": [2 * i for i in batch["id"]]})
    assert open_source(data).kind == "python"
    found = records(data, tmp_path, workers=2)
    assert [r["twice"] for r in found] == [2 * i for i in range(101)]


def test_a_format_is_asked_for(in_memory, tmp_path):
    data = in_memory.select_columns(["id", "grid"]).with_format("numpy")
    found = records(data, tmp_path)
    assert [r["id"] for r in found] == list(range(101))
    assert found[7]["grid"].tolist() == [[7, 1, 2], [3, 4, 5]]


def test_a_decoded_picture_is_refused_with_what_to_do(tmp_path):
    from PIL import Image as Pillow

    file = io.BytesIO()
    Pillow.new("RGB", (2, 2)).save(file, "PNG")
    data = Dataset.from_dict({"p": [{"bytes": file.getvalue(), "path": None}]})
    data = data.cast_column("p", Image())
    assert records(data, tmp_path)[0]["p"] == file.getvalue()
    data = data.with_transform(lambda batch: batch)
    with pytest.raises(FeatureError, match="PIL") as caught:
        sw.write(data, tmp_path / "p@1")
    assert "sw.png" in (caught.value.hint or "")


def test_a_stream_is_read_again_and_its_files_are_not_decoded(in_memory, tmp_path):
    plain = in_memory.select_columns(["id", "label", "picture", "sound"])
    stream = plain.to_iterable_dataset()
    source = open_source(stream)
    assert (source.kind, source.num_items, source.resumable) == ("python", None, True)
    first = [source.load(item) for item in source.items()]
    assert first == [source.load(item) for item in source.items()]
    assert first[3]["picture"] == gif(4)
    assert all_ways(stream, tmp_path)[:4] == written(plain, tmp_path)[:4]
    chained = stream.skip(2).take(3)
    assert [r["id"] for r in records(chained, tmp_path)] == [2, 3, 4]


def test_several_splits_are_named(in_memory, tmp_path):
    both = DatasetDict({"train": in_memory, "val": in_memory})
    with pytest.raises(SourceError, match="with splits train, val") as caught:
        sw.write(both, tmp_path / "t@1")
    assert "--split source" in caught.value.hint
    assert "data['train']" in caught.value.hint
    both.save_to_disk(tmp_path / "saved")
    with pytest.raises(SourceError, match="several splits: train, val") as caught:
        sw.write(tmp_path / "saved", tmp_path / "t@1")
    assert "--split source" in caught.value.hint
    assert "saved/train" in caught.value.hint
    for number, splits in enumerate((both, tmp_path / "saved")):
        found = sw.write_splits(splits, tmp_path / f"{number}@1", "source")
        assert {name: m.num_records for name, m in found.items()} == {"train": 101, "val": 101}
    assert sw.write(tmp_path / "saved" / "val", tmp_path / "t@1").num_records == 101


def test_a_function_of_a_module_may_return_one(in_memory, folder, tmp_path, monkeypatch):
    (tmp_path / "swt_hf.py").write_text(
        f"import datasets\ndef train():\n    return datasets.load_from_disk({str(folder)!r})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "out").mkdir()
    assert open_source("swt_hf:train").kind == "huggingface"
    assert written("swt_hf:train", tmp_path / "out") == written(folder, tmp_path / "out")


# -- errors and the life of a run ------------------------------------------------------------------


def test_a_column_of_dictionaries_is_refused_without_a_map(tmp_path):
    data = Dataset.from_list([{"a": {"b": i, "c": str(i)}, "x": i} for i in range(5)])
    with pytest.raises(SourceError, match="can not be stored in a feature"):
        sw.write(data, tmp_path / "t@1")
    found = records(data, tmp_path, map=lambda row: {"b": row["a"]["b"], "x": row["x"]})
    assert [r["b"] for r in found] == list(range(5))


def test_a_fixed_type_of_no_column(in_memory, tmp_path):
    with pytest.raises(SourceError, match="does not exist"):
        sw.write(in_memory, tmp_path / "t@1", schema="nothing=int64")


def test_names_are_for_tuples(in_memory, tmp_path):
    with pytest.raises(OptionError, match="have names already"):
        sw.write(in_memory, tmp_path / "t@1", names="a,b")


def stop_at_30(row):
    if int(row["id"]) == 30 and not os.path.exists(os.environ["SWT_MENDED"]):
        raise ValueError("not yet")
    return {"id": row["id"], "label": row["label"]}


@pytest.mark.parametrize(
    ("kind", "workers"), [("folder", 1), ("files", 1), ("memory", 1), ("files", 2)]
)
def test_a_stopped_run_resumes(in_memory, folder, tmp_path, monkeypatch, kind, workers):
    data = {"folder": folder, "files": load_from_disk(folder), "memory": in_memory}[kind]
    monkeypatch.setenv("SWT_MENDED", str(tmp_path / "mended"))
    run = RunOptions(workers=workers, mark_s=0)
    with pytest.raises(CallableError, match="not yet"):
        sw.write(data, tmp_path / "out" / "d@3", map=stop_at_30, run=run)
    (tmp_path / "mended").touch()
    notes = []
    sw.write(
        data, tmp_path / "out" / "d@3", map=stop_at_30, run=run, resume=True, notify=notes.append
    )
    assert any(note.startswith("resuming") for note in notes)
    sw.write(data, tmp_path / "whole" / "d@3", map=stop_at_30)
    for name in os.listdir(tmp_path / "whole"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_an_arrow_stream_is_entered_anywhere(tmp_path):
    data = Dataset.from_dict({"x": list(range(5000))})
    data.save_to_disk(tmp_path / "saved")
    source = open_source(str(tmp_path / "saved"))
    begins = source._files[0]._begins
    assert len(begins) == 5
    expected = pa.ipc.open_stream(source._files[0].path).read_all().column("x").to_pylist()
    chosen = np.random.default_rng(0).permutation(5000)[:50].tolist()
    assert [source.load(i)["x"] for i in chosen] == [expected[i] for i in chosen]
