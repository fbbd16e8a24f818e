"""A program that reads a dataset with plain TensorFlow."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from shardwriter.reading.loader_code.facts import (
    IMAGE_SIZE,
    Facts,
    Field,
    call,
    class_names,
    comment,
    files,
    literal,
    opening,
    quoted,
    why_absent,
)

_WIRE: Final = {"int64": "tf.int64", "float": "tf.float32", "bytes": "tf.string"}
_FILLS: Final[dict[str, Any]] = {"int64": 0, "float": float("nan"), "bytes": ""}
_DECODERS: Final = {"jpeg": "decode_jpeg", "png": "decode_png", "bmp": "decode_bmp"}
_UNDECODED: Final = ("tiff", "webp")
# Dtypes that tf.io.decode_raw does not know are read as one of equal size.
_RAW: Final = {"bool": "uint8", "uint32": "int32", "uint64": "int64"}
# TensorFlow opens two more files for each that it reads in turn.
_MAX_IN_TURN: Final = 256
_FEW_IN_TURN: Final = 16
_NO_PICTURE: Final = [
    "# The default image of a record without one: a black pixel.",
    "NO_PICTURE = tf.io.encode_png(tf.zeros([1, 1, 3], tf.uint8)).numpy()",
]


def tensorflow_code(facts: Facts) -> str:
    """Return the program."""
    pictures = [field for field in facts.pictures if _is_decoded(field)]
    lines = opening(facts, "TensorFlow", "TensorFlow and nothing else")
    lines += ["", "import tensorflow as tf", "", *files(facts), "BATCH_SIZE = 32"]
    if pictures:
        lines.append(IMAGE_SIZE)
        if facts.is_sample:
            lines += _NO_PICTURE
    lines += ["", *_features(facts)]
    names = class_names(facts.fields)
    lines += ["", *names] if names else []
    lines += ["", "", *_parse(facts), "", "", *_examples(facts)]
    if pictures:
        lines += ["", "", *_resize(pictures)]
    lines += ["", "", *_batches(facts, pictures), "", "", *_main()]
    return "\n".join(lines) + "\n"


def _is_decoded(field: Field) -> bool:
    return field.is_picture and field.type.format not in _UNDECODED


def _is_parsed_whole(field: Field) -> bool:
    """Return whether the feature is a FixedLenFeature: every record has as many entries."""
    return field.is_raw or (field.is_fixed and not field.is_always_empty)


def _features(facts: Facts) -> list[str]:
    lines = ["FEATURES = {"]
    for field in facts.fields:
        wire = _WIRE[field.type.kind or "bytes"]
        if not _is_parsed_whole(field):
            text = "The number of values varies"
            if field.num_missing:
                text += f"; {why_absent(field, facts.num_counted)}, which is an empty list here"
            lines += comment(f"{text}.", indent=1)
            lines.append(f"    {quoted(field.name)}: tf.io.RaggedFeature({wire}),")
            lines += _sizes(field)
            continue
        shape = [] if field.is_raw else list(field.shape or ())
        parts = [literal(shape), wire]
        if field.is_optional:
            default = _default(field, shape)
            if field.num_missing:
                text = f"{why_absent(field, facts.num_counted)}, and get the default"
                lines += comment(f"{text}.", indent=1)
            parts.append(f"default_value={default}")
        lines += call(f"{quoted(field.name)}: tf.io.FixedLenFeature(", parts, "),", indent=1)
        lines += _sizes(field)
    return [*lines, "}"]


def _sizes(field: Field) -> list[str]:
    """Return the lines of a feature's shape feature, if it has one."""
    if field.sizes_in is None:
        return []
    sizes = [n or 0 for n in field.shape or ()]
    parts = [literal([len(sizes)]), "tf.int64"]
    if field.is_optional:
        parts.append(f"default_value={literal(sizes)}")
    head = f"{quoted(field.sizes_in)}: tf.io.FixedLenFeature("
    return [
        *comment(f"The shape of {quoted(field.name)} in each record.", indent=1),
        *call(head, parts, "),", indent=1),
    ]


def _shaped(field: Field, value: str) -> list[str]:
    """Return the lines that reshape values by their shape feature."""
    this = f"features[{quoted(field.name)}]"
    assert field.sizes_in is not None
    sizes = f"features.pop({quoted(field.sizes_in)})"
    return [
        *call(f"{this} = tf.reshape(", [value, sizes], indent=1),
        *call(f"{this} = tf.ensure_shape(", [this, literal(list(field.shape or ()))], indent=1),
    ]


def _default(field: Field, shape: list[int | None]) -> str:
    """Return the default of a missing value, of its shape: NaN, 0, an empty string, or zeros."""
    if _is_decoded(field):
        return "NO_PICTURE"
    if field.is_raw:
        num_values = math.prod(n or 0 for n in field.shape or ())
        return f'b"\\0" * {num_values * np.dtype(field.type.dtype).itemsize}'
    fill = literal(_FILLS[field.type.kind or "bytes"])
    for size_of_one in reversed(shape):
        fill = f"[{fill}] * {size_of_one}"
    return fill


def _parse(facts: Facts) -> list[str]:
    lines = [
        "def parse(record):",
        '    """Return the features of one serialized tf.train.Example."""',
        "    features = tf.io.parse_single_example(record, FEATURES)",
    ]
    for field in facts.fields:
        lines += _restored(field)
    return [*lines, "    return features"]


def _restored(field: Field) -> list[str]:
    """Return the lines that convert a feature to the shape and dtype in the schema."""
    this = f"features[{quoted(field.name)}]"
    if field.is_picture:
        return _decoded(field, this)
    if field.is_raw:
        return _from_raw(field, this)
    lines = []
    value = this
    shape = field.shape
    if field.sizes_in is not None:
        lines += _shaped(field, this)
    elif shape and not field.is_fixed and shape.count(None) < 2 and len(shape) > 1:
        sizes = [-1 if n is None else n for n in shape]
        value = f"tf.reshape({value}, {literal(sizes)})"
    elif shape and shape.count(None) > 1:
        lines += comment(
            f"Several dimensions of {quoted(field.name)} vary: its values are a flat list.",
            indent=1,
        )
    wire = {"int64": "int64", "float": "float32"}.get(field.type.kind or "")
    dtype = field.type.dtype
    if wire is not None and dtype not in (None, wire):
        value = f"tf.cast({value}, tf.{dtype})"
    if value != this:
        lines.append(f"    {this} = {value}")
    return lines


def _decoded(field: Field, this: str) -> list[str]:
    kind = field.type.format or "image"
    if not _is_decoded(field):
        return comment(
            f"{quoted(field.name)} is left as the bytes of a file: TensorFlow decodes no {kind}.",
            indent=1,
        )
    lines = []
    channels = 1 if field.is_mask else 3
    if field.is_mask and kind in ("png", "gif", "image"):
        lines += comment(
            "For a mask with a palette TensorFlow returns grey values of its colours, not classes.",
            indent=1,
        )
    # The default is a PNG, which not every decoder takes, and later records may hold other formats.
    decoder = "decode_image" if field.is_sampled else _DECODERS.get(kind, "decode_image")
    parts = [this, f"channels={channels}"]
    if decoder == "decode_image":
        parts.append("expand_animations=False")
    return lines + call(f"{this} = tf.io.{decoder}(", parts, indent=1)


def _from_raw(field: Field, this: str) -> list[str]:
    dtype = field.type.dtype or "uint8"
    read = _RAW.get(dtype, dtype)
    lines = call(f"{this} = tf.io.decode_raw(", [this, f"tf.{read}"], indent=1)
    if dtype in ("uint32", "uint64"):
        lines += [f"    {this} = tf.bitcast({this}, tf.{dtype})"]
    elif dtype == "bool":
        lines += [f"    {this} = tf.cast({this}, tf.bool)"]
    shape = field.shape
    if field.sizes_in is not None:
        lines += _shaped(field, this)
    elif shape is not None and shape.count(None) < 2:
        sizes = [-1 if n is None else n for n in shape]
        lines += [f"    {this} = tf.reshape({this}, {literal(sizes)})"]
    return lines


def _examples(facts: Facts) -> list[str]:
    in_turn = len(facts.files) <= _MAX_IN_TURN
    compression = "" if facts.compression == "none" else facts.compression.upper()
    lines = ["def examples():"]
    if in_turn and facts.is_regular:
        lines.append('    """Return all examples, in the order in which they were written."""')
    else:
        lines.append('    """Return all examples, reading several files at a time."""')
    lines.append("    files = tf.data.Dataset.from_tensor_slices(FILES)")
    if in_turn and facts.is_regular and len(facts.files) > 1:
        lines += comment("One record of each file in turn: record i is in file i % len(FILES).", 1)
    elif not in_turn:
        lines += comment(
            "cycle_length is the number of open files. The order in which the records were written "
            "needs cycle_length=len(FILES).",
            indent=1,
        )
    parts = ["file"]
    if compression:
        parts.append(f"compression_type={quoted(compression)}")
    lines += [
        "    records = files.interleave(",
        f"        lambda file: tf.data.TFRecordDataset({', '.join(parts)}),",
        f"        cycle_length={'len(FILES)' if in_turn else _FEW_IN_TURN},",
        "        block_length=1,",
        "        num_parallel_calls=tf.data.AUTOTUNE,",
        "        deterministic=True,",
        "    )",
        "    return records.map(parse, num_parallel_calls=tf.data.AUTOTUNE)",
    ]
    return lines


def _resize(pictures: list[Field]) -> list[str]:
    lines = [
        "def resize(features):",
        '    """Resize the images to one size, so that they can be stacked."""',
    ]
    for field in pictures:
        this = f"features[{quoted(field.name)}]"
        channels = 1 if field.is_mask else 3
        if field.is_mask:
            lines += comment("Nearest neighbour, since classes can not be interpolated.", 1)
            parts = [this, "IMAGE_SIZE", 'method="nearest"']
        else:
            lines += comment("float32 from 0 to 255.", 1)
            parts = [this, "IMAGE_SIZE"]
        lines += call("image = tf.image.resize(", parts, indent=1)
        lines += call(f"{this} = tf.ensure_shape(", ["image", f"[*IMAGE_SIZE, {channels}]"], ")", 1)
    return [*lines, "    return features"]


def _batches(facts: Facts, pictures: list[Field]) -> list[str]:
    # Features without a fixed shape are batched as ragged tensors.
    varies = any(
        not _is_parsed_whole(field) or (field.is_raw and not field.is_fixed)
        for field in facts.fields
    )
    lines = [
        "def batches(shuffle=False):",
        '    """Return batches of examples, each a dict of tensors."""',
        "    dataset = examples()",
        "    if shuffle:",
        "        dataset = dataset.shuffle(10_000)  # examples in the shuffle buffer",
    ]
    if pictures:
        lines.append("    dataset = dataset.map(resize, num_parallel_calls=tf.data.AUTOTUNE)")
    if varies:
        lines += comment(
            "Features of varying length become RaggedTensors; to_tensor() pads them.", indent=1
        )
        lines.append("    dataset = dataset.ragged_batch(BATCH_SIZE)")
    else:
        lines.append("    dataset = dataset.batch(BATCH_SIZE)")
    return [*lines, "    return dataset.prefetch(tf.data.AUTOTUNE)"]


def _main() -> list[str]:
    return [
        'if __name__ == "__main__":',
        "    for batch in batches().take(1):",
        "        for name, values in batch.items():",
        "            print(name, values.dtype.name, values.shape)",
    ]
