"""Images that were made anew, on Beam, and as TensorFlow and TFDS see them."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from detection_sets import write
from environments import ask_tfds
from image_files import file_of, opened, photo, picture, pixels

import shardwriter as sw
from shardwriter.errors import OptionError
from shardwriter.writing.options import DatasetOptions


@pytest.fixture
def folder(tmp_path):
    for number in range(9):
        data = photo(60 + number, 80, orientation=number or None)
        write(tmp_path / "photos" / f"{number % 2}/{number}.jpg", data)
    write(tmp_path / "photos/1/a.png", file_of(picture(70, 50, "P"), "PNG"))
    return tmp_path / "photos"


def test_beam_writes_the_same_bytes(folder, tmp_path):
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
    from beam_jobs import assert_same, run

    from shardwriter.cluster import WriteShards

    images = sw.ImageOptions(max_side=50, quality=70)
    sw.write(str(folder), tmp_path / "serial" / "t@3", images=images)
    for strategy in ("strided", "chunked"):
        place = tmp_path / strategy
        options = DatasetOptions(images=images)
        source = {"source": str(folder), "options": options, "strategy": strategy}
        run(WriteShards(place / "t@3", **source), None)
        assert_same(place, tmp_path / "serial")
    found = [opened(e["image/encoded"]).size for e in sw.open(tmp_path / "serial" / "t")]
    assert max(map(max, found)) == 50


def test_items_of_a_pipeline_by_their_keys(tmp_path):
    beam = pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
    from beam_jobs import run

    from shardwriter.cluster import WriteShards
    from shardwriter.schema.feature_types import parse_schema_option

    items = [{"id": str(n), "image": photo(30 + n, 40)} for n in range(7)]
    schema = parse_schema_option("image=image")
    options = DatasetOptions(images=sw.ImageOptions(resize=8), schema=schema)
    run(WriteShards(tmp_path / "t@2", key="id", options=options), None, beam.Create(items))
    assert {min(opened(e["image"]).size) for e in sw.open(tmp_path / "t")} == {8}
    (tmp_path / "t.csv").write_text("a\n1\n")
    options = DatasetOptions(images=sw.ImageOptions(resize=8))
    tables = WriteShards(tmp_path / "u@2", source=str(tmp_path / "t.csv"), options=options)
    with pytest.raises(OptionError, match="no images"):
        run(tables)


def test_tensorflow_decodes_what_was_made(tf, tmp_path):
    deep = (picture(mode="I;16"), "PNG")
    cases = {
        "photo": photo(),
        "cmyk": file_of(picture(mode="CMYK"), "JPEG", quality=95),
        "grey": file_of(picture(mode="L"), "JPEG"),
        "palette": file_of(picture(mode="P"), "PNG"),
        "bits": file_of(picture(mode="1"), "PNG"),
        "deep": file_of(*deep),
        "gif": file_of(picture(), "GIF"),
        "bmp": file_of(picture(), "BMP"),
        "tiff": file_of(picture(), "TIFF"),
    }
    rows = [{"image": data, "name": name} for name, data in cases.items()]
    sw.write(rows, tmp_path / "t@1", schema="image=image", images=sw.ImageOptions((20, 15)))
    for example in sw.open(tmp_path / "t"):
        data, name = example["image"], example["name"]
        dtype = tf.uint16 if name == "deep" else tf.uint8
        decode = tf.io.decode_png if data[1:4] == b"PNG" else tf.io.decode_jpeg
        options = {"dtype": dtype} if decode is tf.io.decode_png else {}
        seen = decode(data, channels=3, **options).numpy()
        assert seen.shape == (15, 20, 3), name
        if name == "deep":
            ours = np.asarray(opened(data)).astype(int)[:, :, None]
            assert np.array_equal(seen, np.broadcast_to(ours, seen.shape))
        else:
            ours = np.asarray(opened(data).convert("RGB")).astype(int)
            assert np.abs(seen - ours).mean() < 3, name


def test_a_tf_dataset_decodes_them(tf, tmp_path):
    from shardwriter.reading.tensorflow import tf_dataset

    sw.write([{"x": sw.png(pixels())}, {"x": sw.jpeg(pixels())}], tmp_path / "t@1")
    first, second = tf_dataset(str(tmp_path / "t"))
    assert np.array_equal(tf.io.decode_image(first["x"]).numpy(), pixels())
    assert tf.io.decode_image(second["x"]).shape == (30, 40, 3)


def test_tfds_reads_them_as_images(tmp_path):
    pictures = [pixels(20 + number) for number in range(3)]
    rows = [{"picture": sw.png(found), "n": number} for number, found in enumerate(pictures)]
    sw.write(rows, tmp_path / "data/train@2", tfds="made:1.0.0")
    (told,) = ask_tfds([["read", str(tmp_path / "data/made/1.0.0")]])
    seen = {row["n"][2][0]: row["picture"] for row in told["splits"]["train"]["rows"]}
    assert seen == {
        number: ["pixels", list(found.shape), zlib.crc32(found.tobytes())]
        for number, found in enumerate(pictures)
    }
