"""An open dataset inside of a keras ``PyDataset``: length and random access are all it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardwriter as sw
from shardwriter.reading.opening import open_dataset


@pytest.fixture
def batches(tf: Any, tmp_path: Path) -> Any:
    """A keras dataset of 200 points in 4 shards, each in one of two corners of a plane."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 2, 200)
    points = rng.normal(labels[:, None] * 4.0 - 2.0, 0.5, (200, 2)).astype(np.float32)
    items = [{"i": i, "x": points[i], "y": int(labels[i])} for i in range(200)]
    sw.write(items, tmp_path / "points@4")

    class Points(tf.keras.utils.PyDataset):
        def __init__(self, data: Any, batch_size: int, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.data, self.size = data, batch_size

        def __len__(self) -> int:
            return -(-len(self.data) // self.size)

        def __getitem__(self, j: int) -> Any:
            rows = range(j * self.size, min(len(self.data), (j + 1) * self.size))
            columns = self.data.columns(rows)
            return columns["x"], columns["y"]

    def make(data: Any = None, **kwargs: Any) -> Any:
        whole = open_dataset(tmp_path / "points")
        return Points(whole if data is None else data(whole), 32, **kwargs)

    return make


def test_every_record_is_where_it_should_be(batches):
    data = batches().data
    assert [data[j]["i"] for j in range(len(data))] == list(range(200))
    assert [data[-1 - j]["i"] for j in range(200)] == list(reversed(range(200)))


@pytest.mark.parametrize("kwargs", [{}, {"workers": 2, "max_queue_size": 4}])
def test_a_model_trains_from_it(tf, batches, kwargs):
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.layers.Dense(2, activation="softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.optimizer.learning_rate = 0.1
    shuffled = batches(lambda data: data.shuffle(seed=1), **kwargs)
    model.fit(shuffled, epochs=2, verbose=0)
    _, accuracy = model.evaluate(batches(), verbose=0)
    assert accuracy > 0.95


def test_a_model_trains_from_tf_data(tf, batches):
    from shardwriter.reading.tensorflow import tf_dataset

    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.layers.Dense(2, activation="softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.optimizer.learning_rate = 0.1
    path = batches().data.path
    pairs = tf_dataset(path, batch_size=32, shuffle=True).map(lambda e: (e["x"], e["y"]))
    model.fit(pairs, epochs=2, verbose=0, shuffle=False)
    _, accuracy = model.evaluate(pairs, verbose=0)
    assert accuracy > 0.95
