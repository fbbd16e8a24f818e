"""ShardLoader with varying shapes, raw bytes and SequenceExamples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_sets import quiet

import shardwriter as sw
from shardwriter.errors import OptionError
from shardwriter.reading.torch import ShardLoader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
quiet()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_arrays_of_their_own_shapes_and_raw_bytes(tmp_path, num_workers):
    items = [
        {
            "image": np.full((i % 3 + 1, 4 - i % 2, 3), i, "u1"),
            "emb": sw.raw(np.full(3, i, "f2")),
            "c": sw.raw(np.complex64(i + 1j)),
        }
        for i in range(8)
    ]
    sw.write(items, tmp_path / "t@2", schema="image=uint8[null,null,3]")
    loader = ShardLoader(tmp_path / "t", batch_size=4, num_workers=num_workers, shuffle=False)
    batches = list(loader)
    images = [image for batch in batches for image in batch["image"]]
    assert [tuple(image.shape) for image in images] == [item["image"].shape for item in items]
    assert all((image == i).all() for i, image in enumerate(images))
    assert "image/shape" not in batches[0]
    assert batches[1]["emb"].dtype == torch.float16
    assert batches[1]["emb"].tolist() == [[i] * 3 for i in range(4, 8)]
    assert batches[0]["c"].tolist() == [i + 1j for i in range(4)]


def test_bfloat16_is_that_of_torch(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.array([0.5, -2], ml_dtypes.bfloat16)
    sw.write([{"x": sw.raw(values)}] * 2, tmp_path / "t@1")
    batch = next(iter(ShardLoader(tmp_path / "t", batch_size=2, shuffle=False)))
    assert batch["x"].dtype == torch.bfloat16
    assert batch["x"].tolist() == [[0.5, -2]] * 2


@pytest.mark.parametrize("num_workers", [0, 1])
def test_sequences_come_as_a_list(tmp_path, num_workers):
    items = [sw.SequenceExample({"k": i}, {"x": np.full((i, 2), i, "f4")}) for i in range(4)]
    sw.write(items, tmp_path / "t@2")
    loader = ShardLoader(tmp_path / "t", batch_size=2, num_workers=num_workers, shuffle=False)
    found = [example for batch in loader for example in batch]
    assert [example.context["k"] for example in found] == [0, 1, 2, 3]
    assert [example.feature_lists["x"].shape for example in found] == [(i, 2) for i in range(4)]
    with pytest.raises(OptionError, match="SequenceExamples"):
        list(ShardLoader(tmp_path / "t", batch_size=3, uneven="pad"))
