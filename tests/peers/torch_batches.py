"""ShardLoader with decoded images, padded lists, and options that are misspelt."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image
from torch_sets import quiet

import shardwriter as sw
from shardwriter.errors import FeatureError, OptionError
from shardwriter.reading.torch import ShardLoader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
quiet()


def pixels(i, height=6, width=8, channels=3):
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(i).integers(0, 255, shape).astype(np.uint8)


@pytest.fixture
def photos(tmp_path):
    sw.write([{"photo": sw.png(pixels(i)), "n": i} for i in range(10)], tmp_path / "p@2")
    return tmp_path / "p"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_images_of_one_size_are_one_tensor(photos, num_workers):
    loader = ShardLoader(photos, 4, decode="images", num_workers=num_workers)
    for batch in loader:
        assert batch["photo"].dtype == torch.uint8
        for n, photo in zip(batch["n"].tolist(), batch["photo"], strict=True):
            assert (photo.numpy() == pixels(n)).all()
    plain = next(iter(ShardLoader(photos, 4)))
    assert plain["photo"][0].startswith(b"\x89PNG")


def test_images_of_other_sizes_are_a_list(tmp_path):
    sizes = [(4, 5), (7, 3), (4, 5)]
    sw.write([{"photo": sw.png(pixels(0, *size))} for size in sizes], tmp_path / "p@1")
    batch = next(iter(ShardLoader(tmp_path / "p", 3, decode="images")))
    assert [tuple(photo.shape) for photo in batch["photo"]] == [(*size, 3) for size in sizes]
    padded = next(iter(ShardLoader(tmp_path / "p", 3, decode="images", pad=0)))
    assert padded["photo"].shape == (3, 7, 5, 3)
    assert padded["photo/length"].tolist() == [[*size, 3] for size in sizes]
    assert (padded["photo"][1, :, 3:] == 0).all()
    assert (padded["photo"][1, :, :3].numpy() == pixels(0, 7, 3)).all()


def test_a_map_is_given_pixels(photos):
    def half(example):
        return {"small": example["photo"][::2, ::2], "n": example["n"]}

    batch = next(iter(ShardLoader(photos, 5, decode="images", map=half)))
    assert batch["small"].shape == (5, 3, 4, 3)
    samples = next(iter(ShardLoader(photos, 5, decode="images", collate=list)))
    assert samples[0]["photo"].shape == (6, 8, 3)


def test_modes_keep_their_channels_and_masks_their_numbers(tmp_path):
    def file(image):
        buffer = BytesIO()
        image.save(buffer, "PNG")
        return buffer.getvalue()

    numbers = np.arange(12, dtype=np.uint8).reshape(3, 4)
    palette = Image.fromarray(numbers, "P")
    palette.putpalette([255 - i // 3 for i in range(768)])
    row = {
        "grey": file(Image.fromarray(pixels(0, channels=1))),
        "alpha": file(Image.fromarray(pixels(0, channels=4))),
        "image": file(palette),
        "image/mask": file(palette),
    }
    schema = ",".join(f"{name}=image" for name in row)
    sw.write([row], tmp_path / "p@1", schema=schema)
    batch = next(iter(ShardLoader(tmp_path / "p", 1, decode="images")))
    assert batch["grey"].shape == (1, 6, 8, 1)
    assert batch["alpha"].shape == (1, 6, 8, 4)
    assert batch["image"].shape == (1, 3, 4, 3)
    assert batch["image"][0, 0, 1].tolist() == [254, 254, 254]
    assert (batch["image/mask"][0, :, :, 0].numpy() == numbers).all()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_image_that_is_broken_is_named(tmp_path, num_workers):
    good = sw.png(pixels(0))
    rows = [{"photo": good}, {"photo": good[:60]}]
    sw.write(
        [{"photo": bytes(row["photo"])} for row in rows], tmp_path / "p@1", schema="photo=image"
    )
    loader = ShardLoader(tmp_path / "p", 2, decode="images", num_workers=num_workers)
    with pytest.raises(FeatureError, match="can not be decoded") as caught:
        list(loader)
    assert (caught.value.feature, caught.value.index) == ("photo", 1)
    assert caught.value.record_index == 1


def test_a_dataset_without_images_is_refused(tmp_path):
    sw.write([{"x": 1}], tmp_path / "t@1")
    with pytest.raises(OptionError, match="no feature of 't' is an image in its schema"):
        ShardLoader(tmp_path / "t", decode="images")
    with pytest.raises(OptionError, match="decode='images' needs"):
        ShardLoader(sw.open(tmp_path / "t", decode=False), decode="images")
    with pytest.raises(OptionError, match="decode is 'image'"):
        ShardLoader(tmp_path / "t", decode="image")


@pytest.fixture
def texts(tmp_path):
    rows = [
        {"tokens": np.arange(i % 4), "n": i, "words": ["a"] * (i % 3), "x": np.full(2, i, "f4")}
        for i in range(12)
    ]
    sw.write(rows, tmp_path / "t@2", schema="tokens=int64[null],words=string[null]")
    return tmp_path / "t"


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("pad", [-1, {"tokens": -1}])
def test_lists_are_padded_to_the_longest_of_the_batch(texts, num_workers, pad):
    batches = list(ShardLoader(texts, 3, pad=pad, num_workers=num_workers))
    assert len(batches) == 4
    for batch in batches:
        lengths = [n % 4 for n in batch["n"].tolist()]
        assert batch["tokens/length"].tolist() == lengths
        assert batch["tokens"].shape == (3, max(lengths))
        assert batch["tokens"].dtype == torch.int64
        for row, length in zip(batch["tokens"].tolist(), lengths, strict=True):
            assert row == [*range(length), *[-1] * (max(lengths) - length)]
        assert batch["x"].shape == (3, 2)
        assert "x/length" not in batch
        assert isinstance(batch["words"], list)


def test_without_a_schema_every_list_of_numbers_is_padded(tmp_path):
    with sw.TFRecordWriter(tmp_path / "t.tfrecord") as writer:
        for i in range(1, 5):
            writer.write(sw.encode_example({"tokens": list(range(i + 1)), "n": i}))
    batch = next(iter(ShardLoader(tmp_path / "t.tfrecord", 4, pad=0)))
    assert batch["tokens"].shape == (4, 5)
    assert batch["tokens/length"].tolist() == [2, 3, 4, 5]
    assert batch["n"].tolist() == [[1], [2], [3], [4]]


def test_what_a_map_returns_is_padded_by_name(texts):
    def twice(example):
        return {"twice": np.repeat(example["tokens"], 2), "n": example["n"]}

    batch = next(iter(ShardLoader(texts, 4, map=twice, pad={"twice": 9})))
    assert batch["twice"].tolist() == [
        [9] * 6,
        [0, 0] + [9] * 4,
        [0, 0, 1, 1, 9, 9],
        [0, 0, 1, 1, 2, 2],
    ]
    assert batch["twice/length"].tolist() == [0, 2, 4, 6]
    with pytest.raises(OptionError, match="with a map it must name") as caught:
        ShardLoader(texts, 4, map=twice, pad=9)
    assert "pad={" in caught.value.hint


@pytest.mark.parametrize(
    ("pad", "match"),
    [
        ("0", "pad is '0'"),
        ({"tokens": None}, "pad of 'tokens' is None"),
        ({"token": 0}, "did you mean 'tokens'"),
        ({"words": 0}, "'words', which is string"),
    ],
)
def test_a_pad_that_can_not_be_is_refused(texts, pad, match):
    with pytest.raises(OptionError, match=match):
        ShardLoader(texts, 4, pad=pad)


def test_a_pad_that_the_type_does_not_hold_is_refused(tmp_path):
    rows = [{"x": np.zeros(i, np.uint8)} for i in range(1, 4)]
    sw.write(rows, tmp_path / "t@1", schema="x=uint8[null]")
    for pad in (-1, 256, 0.5):
        with pytest.raises(OptionError, match="uint8 does not hold"):
            list(ShardLoader(tmp_path / "t", 3, pad=pad))
    batch = next(iter(ShardLoader(tmp_path / "t", 3, pad=255)))
    assert batch["x"].tolist() == [[0, 255, 255], [0, 0, 255], [0, 0, 0]]


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("batchsize", "batch_size"), ("num_worker", "num_workers"), ("pin_memori", "pin_memory")],
)
def test_a_misspelt_option_names_the_one_that_is_meant(texts, wrong, meant):
    with pytest.raises(OptionError, match=f"no option '{wrong}'\n  hint: did you mean {meant}="):
        ShardLoader(texts, **{wrong: 1})


def test_the_first_line_of_a_rank_shows_the_way_out(texts):
    with pytest.raises(sw.UnequalSteps, match=r"hint: .*uneven='drop'"):
        len(ShardLoader(texts, 2, world=5, rank=0))


def test_a_loader_shows_itself_in_a_line(texts):
    loader = ShardLoader(texts, 4, shuffle=True, uneven="drop")
    assert repr(loader) == (
        "<ShardLoader 't': 12 records, batch_size=4, shuffle=True, uneven='drop'>"
    )
    assert loader._repr_html_().startswith("<table>")
