"""What TFDS and timm read in a folder that ``shardwriter write --tfds`` has written.

Questions come in as JSON, one an object; the answers go out in the same order. Bytes are given as
latin-1 text, and an image as its shape with the CRC of its pixels.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import tempfile
import types
import zlib
from functools import cache
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds


def as_json(value: Any) -> Any:
    """Return a value as JSON, its dtype included."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    array = np.asarray(value)
    if array.dtype == object:
        return [as_json(part) for part in array.ravel().tolist()]
    if array.dtype == np.uint8 and array.ndim == 3:
        return ["pixels", list(array.shape), zlib.crc32(array.tobytes())]
    return [array.dtype.name, list(array.shape), array.ravel().astype(object).tolist()]


def rows(builder: Any, split: str) -> list[dict[str, Any]]:
    config = tfds.ReadConfig(interleave_cycle_length=1)
    found = builder.as_dataset(split=split, shuffle_files=False, read_config=config)
    rows = found.as_numpy_iterator()
    return [{name: as_json(value) for name, value in row.items()} for row in rows]


def read(folder: str) -> dict[str, Any]:
    """Read every split as ``builder_from_directory`` has it."""
    builder = tfds.builder_from_directory(folder)
    return {
        "name": builder.info.full_name,
        "splits": {
            name: {
                "num_examples": info.num_examples,
                "num_bytes": info.num_bytes,
                "lengths": list(info.shard_lengths),
                "rows": rows(builder, name),
            }
            for name, info in builder.info.splits.items()
        },
        "names": {
            name: feature.names
            for name, feature in builder.info.features.items()
            if isinstance(feature, tfds.features.ClassLabel)
        },
    }


def load(data_dir: str, name: str, split: str) -> int:
    """Count what ``tfds.load`` gives."""
    return sum(1 for _ in tfds.load(name, data_dir=data_dir, split=split))


def written_by_tfds(folder: str) -> dict[str, str]:
    """Return the files that TFDS itself writes for the shards and features of a folder."""
    builder = tfds.builder_from_directory(folder)
    infos = [
        tfds.core.SplitInfo(
            name, list(info.shard_lengths), payload_bytes(folder, name), info.filename_template
        )
        for name, info in builder.info.splits.items()
    ]
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place, *Path(folder).parts[-2:])
        copy.mkdir(parents=True)
        for path in Path(folder).glob("*.tfrecord-*-of-*[0-9]"):
            (copy / path.name).symlink_to(path)
        tfds.folder_dataset.write_metadata(
            data_dir=copy,
            features=builder.info.features,
            split_infos=[
                info.replace(filename_template=info.filename_template.replace(data_dir=copy))
                for info in infos
            ],
            check_data=False,
        )
        return {
            path.name: path.read_text() for path in copy.iterdir() if ".tfrecord-" not in path.name
        }


def payload_bytes(folder: str, split: str) -> int:
    files = sorted(map(str, Path(folder).glob(f"*-{split}.tfrecord-*-of-*[0-9]")))
    return sum(len(record.numpy()) for record in tf.data.TFRecordDataset(files))


def image_features(folder: str, names: list[str], image_format: str) -> bool:
    """Return whether features.json is what TFDS writes for images of classes."""
    features = tfds.features.FeaturesDict(
        {
            "filename": tfds.features.Text(),
            "image": tfds.features.Image(encoding_format=image_format),
            "label": tfds.features.ClassLabel(names=names),
        }
    )
    with tempfile.TemporaryDirectory() as place:
        features.save_config(place)
        return all(
            Path(folder, name).read_bytes() == Path(place, name).read_bytes()
            for name in ("features.json", "label.labels.txt")
        )


@cache
def timm_create_dataset() -> Any:
    """Return timm's ``create_dataset``; without torchvision, what it makes of a ``tfds/`` name."""
    try:
        from timm.data import create_dataset

        return create_dataset
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "torchvision":
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "timm"]:
        del sys.modules[name]
    folder = os.path.dirname(importlib.util.find_spec("timm").origin)
    for name in (
        "timm",
        "timm.data",
        "timm.utils",
    ):  # the packages without what they import themselves
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(folder, *name.split(".")[1:])]
        sys.modules[name] = package
    dataset = importlib.import_module("timm.data.dataset")
    return lambda name, root, **options: dataset.IterableImageDataset(
        root, reader=name, is_training=False, **options
    )


def timm_read(root: str, name: str, split: str) -> dict[str, Any]:
    """Read a split as timm's ``create_dataset`` has it, with its default keys."""
    create_dataset = timm_create_dataset()
    dataset = create_dataset(f"tfds/{name}", root=root, split=split, batch_size=2)
    found = [(list(image.size), image.mode, int(label)) for image, label in dataset]
    again = create_dataset(f"tfds/{name}", root=root, split=split, batch_size=2)
    return {
        "rows": found,
        "len": len(dataset),
        "classes": dataset.reader.class_to_idx,
        "filenames": [name.decode() for name in again.filenames()],
    }


ASKED = {
    "read": read,
    "load": load,
    "written_by_tfds": written_by_tfds,
    "image_features": image_features,
    "timm": timm_read,
}

if __name__ == "__main__":
    questions = json.load(sys.stdin)
    out, sys.stdout = sys.stdout, sys.stderr
    json.dump([ASKED[name](*arguments) for name, *arguments in questions], out)
