"""Other people's files through Beam: the bytes of the serial engine, or the same refusal."""

from __future__ import annotations

import pytest
from beam_jobs import assert_same, run
from detection_sets import everything, voc_object, write_coco, write_voc

import shardwriter as sw
from shardwriter.errors import ShardwriterError

pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
from shardwriter.cluster import WriteShards

TABLES = {
    "csv": "**/*.csv",
    "jsonl": "**/*.ndjson",
    "tfrecord": "**/*.tfrecord*",
    "webdataset": "**/*.t[ag][rz]*",
}
IMAGES = ("cvat-ai+datumaro/**/*.jpg", "cvat-ai+datumaro/**/*.png")


def write_both(tmp_path, source, kind):
    """Write a source both ways; return whether it could be written."""
    options = sw.RunOptions(on_error="skip")
    transform = None
    refused = None
    try:
        sw.write(source, tmp_path / "serial" / "t@5", format=kind, run=options)
    except ShardwriterError as error:
        refused = error
    try:
        transform = WriteShards(tmp_path / "beam" / "t@5", source=source, format=kind, run=options)
        run(transform)
    except Exception as error:
        assert refused is not None, f"{source}: {error}"
        assert type(error) is type(refused)
        return False
    assert refused is None, f"{source}: {refused}"
    assert_same(tmp_path / "beam", tmp_path / "serial")
    return True


@pytest.mark.filterwarnings("ignore::shardwriter.errors.DataWarning")  # files of all kinds
@pytest.mark.parametrize(
    ("kind", "least"), [("csv", 4), ("jsonl", 2), ("tfrecord", 30), ("webdataset", 12)]
)
def test_files(tmp_path, data_dir, kind, least):
    files = sorted(path for path in data_dir.glob(TABLES[kind]) if path.is_file())
    done = [
        write_both(tmp_path / str(number), str(path), kind)
        for number, path in enumerate(files)
        if path.stat().st_size < 1 << 22
    ]
    assert sum(done) >= least


def test_folders_of_images(tmp_path, data_dir):
    folders = sorted({path.parent for pattern in IMAGES for path in data_dir.glob(pattern)})
    done = [
        write_both(tmp_path / str(number), str(path), "image-folder")
        for number, path in enumerate(folders[:12])
    ]
    assert sum(done) >= 8


def test_folders_of_sounds(tmp_path, data_dir):
    folders = sorted({path.parent for path in data_dir.glob("**/*.wav")})
    done = [
        write_both(tmp_path / str(number), str(path), "audio")
        for number, path in enumerate(folders)
    ]
    assert sum(done) >= 2


def test_annotated_images(tmp_path):
    cat, dog = voc_object("cat"), voc_object("dog")
    coco = write_coco(tmp_path / "coco", everything())
    voc = write_voc(tmp_path / "voc", {"b": [cat], "a": [dog, cat], "c": []})
    assert write_both(tmp_path / "1", coco, "coco")
    assert write_both(tmp_path / "2", voc, "voc")
