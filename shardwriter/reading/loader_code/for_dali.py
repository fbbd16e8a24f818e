"""A program that reads a dataset with NVIDIA DALI.

Behaviour of its reader on unusual records, as observed with version 2.4: a batch fails if a record
lacks a feature. A feature without a value is read as an empty list if its length varies, as
uninitialized memory if it is fixed, and crashes the process if it is bytes. Of several byte strings
only the first is read. Defaults are ignored: an absent scalar number is read as 0, and anything
else fails.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

from shardwriter.dataset import DALI_INDEX_SUFFIX, is_url
from shardwriter.errors import OptionError
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

_WIRE: Final = {"int64": "tfrecord.int64", "float": "tfrecord.float32"}
_WIRE_DTYPES: Final = {"int64": "int64", "float": "float32"}
_TYPES: Final = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FLOAT16",
    "float32": "FLOAT",
    "float64": "FLOAT64",
}
_UNDECODED: Final = ("gif",)


def dali_code(facts: Facts) -> str:
    """Return the program.

    Raises:
        OptionError: DALI can not read the dataset.
    """
    _check(facts)
    if facts.is_sample:
        # DALI has no defaults, so features are read as if every record had them.
        as_counted = tuple(replace(field, is_sampled=False) for field in facts.fields)
        facts = replace(facts, fields=as_counted)
    why_not = {field.name: _why_not(field, facts) for field in facts.fields}
    fields = [field for field in facts.fields if why_not[field.name] is None]
    if not fields:
        raise OptionError(
            f"DALI can read none of its features: {next(filter(None, why_not.values()))}",
            path=facts.path,
            hint="--code torch or --code grain reads them",
        )
    needs = "pip install nvidia-dali-cuda120 (or -cuda130)"
    lines = opening(facts, "NVIDIA DALI", needs, has_defaults=False)
    for name, reason in why_not.items():
        if reason is not None:
            lines += comment(f"{quoted(name)} is left out: {reason}.")
    lines += [
        "",
        "from nvidia.dali import fn, pipeline_def, tfrecord, types",
        "",
        *files(facts),
        "BATCH_SIZE = 32",
    ]
    if any(_is_decoded(field) for field in fields):
        lines.append(IMAGE_SIZE)
    names = class_names(fields)
    lines += ["", *names] if names else []
    lines += ["", *_features(fields, facts)]
    lines += ["", "", *_pipeline(fields), "", "", *_main()]
    text = "\n".join(lines) + "\n"
    return text if "types." in text else text.replace(", tfrecord, types\n", ", tfrecord\n", 1)


def _check(facts: Facts) -> None:
    if facts.compression != "none":
        raise OptionError(
            f"DALI reads no {facts.compression} shards",
            path=facts.path,
            hint=f"`shardwriter write {facts.path} OUT@{len(facts.files)} --compression none` "
            "writes uncompressed ones; or use --code torch or --code grain",
        )
    if is_url(facts.path):
        raise OptionError(
            "DALI reads only local files", path=facts.path, hint="copy the shards to a disk first"
        )
    if not all(os.path.exists(file + DALI_INDEX_SUFFIX) for file in facts.files):
        raise OptionError(
            f"DALI needs a {DALI_INDEX_SUFFIX} file beside every shard, and some are missing",
            path=facts.path,
            hint=f"`shardwriter index {facts.path} --idx` writes them",
        )


def _why_not(field: Field, facts: Facts) -> str | None:
    """Return the reason why DALI can not read a feature; None if it can."""
    missing = why_absent(field, facts.num_counted)
    if field.num_absent:
        return f"DALI fails if a record lacks a feature, and {missing} of it"
    if field.num_unset and (field.type.kind == "bytes"):
        return f"DALI crashes if bytes have no value, and {missing}"
    if field.type.kind == "bytes" and not field.is_scalar and not field.is_raw:
        return "DALI reads only the first of several strings"
    if field.is_number and field.type.dtype is not None and field.type.dtype not in _TYPES:
        return f"DALI has no dtype {field.type.dtype}"
    return None


def _is_decoded(field: Field) -> bool:
    return field.is_picture and field.type.format not in _UNDECODED


def _is_padded(field: Field) -> bool:
    """Return whether the feature is a list of varying length."""
    return field.is_number and not field.is_raw and not field.is_fixed


def _features(fields: list[Field], facts: Facts) -> list[str]:
    lines = ["FEATURES = {"]
    for field in fields:
        name = quoted(field.name)
        if field.sizes_in is not None and not field.is_optional:
            lines += comment(f"The shape of {name} in each record.", indent=1)
            parts = [literal([len(field.shape or ())]), "tfrecord.int64", "0"]
            head = f"{quoted(field.sizes_in)}: tfrecord.FixedLenFeature("
            lines += call(head, parts, "),", indent=1)
        if field.type.kind == "bytes":
            parts = ["()", "tfrecord.string", '""']
            lines += call(f"{name}: tfrecord.FixedLenFeature(", parts, "),", indent=1)
            continue
        wire = _WIRE[field.type.kind or "int64"]
        zero = "0" if field.type.kind == "int64" else "0.0"
        shape = field.shape or ()
        if field.is_fixed and not field.is_optional:
            parts = [literal(list(shape)) if shape else "()", wire, zero]
            lines += call(f"{name}: tfrecord.FixedLenFeature(", parts, "),", indent=1)
            continue
        if field.is_optional:
            text = f"{why_absent(field, facts.num_counted)}: it is read as a list of none or one"
            lines += comment(f"{text}.", indent=1) if field.is_fixed else []
        inner = [n for n in (shape if field.is_fixed else shape[1:]) if n is not None]
        is_in_front = field.is_fixed or (bool(shape) and shape[0] is None)
        parts = [wire, zero]
        if inner and is_in_front and None not in (shape if field.is_fixed else shape[1:]):
            parts = [literal(inner), *parts]
        lines += call(f"{name}: tfrecord.VarLenFeature(", parts, "),", indent=1)
    return [*lines, "}"]


def _pipeline(fields: list[Field]) -> list[str]:
    lines = comment(
        "device_id=None uses the CPU only. With device_id=0 images are decoded on the GPU if the "
        'decoder has device="mixed"; x.gpu() copies other values there.'
    )
    lines += [
        "@pipeline_def(batch_size=BATCH_SIZE, num_threads=4, device_id=None)",
        "def pipeline(shuffle=False, rank=0, world=1):",
        '    """Return the columns of one rank, in the order of FEATURES."""',
        "    record = fn.readers.tfrecord(",
        "        path=FILES,",
        f'        index_path=[f"{{file}}{DALI_INDEX_SUFFIX}" for file in FILES],',
        "        features=FEATURES,",
        "        random_shuffle=shuffle,",
        "        shard_id=rank,",
        "        num_shards=world,",
        '        name="reader",',
        "    )",
    ]
    for field in fields:
        lines += _restored(field)
    return [*lines, "    return tuple(record[name] for name in FEATURES)"]


def _restored(field: Field) -> list[str]:
    this = f"record[{quoted(field.name)}]"
    if field.is_picture:
        return _decoded(field, this)
    dtype = field.type.dtype
    if field.is_raw:
        parts = [this, f"dtype=types.{_TYPES[dtype or 'uint8']}"]
        if field.sizes_in is not None and not field.is_optional:
            parts.append(f"shape={_sizes(field)}")
        elif field.shape and field.shape.count(None) < 2:
            parts.append(f"shape={literal([-1 if n is None else n for n in field.shape])}")
        return call(f"{this} = fn.reinterpret(", parts, indent=1)
    if field.type.kind == "bytes":
        return comment(f"{quoted(field.name)} is bytes, as uint8.", indent=1)
    lines = []
    shape = field.shape
    if field.is_optional and field.is_fixed:
        is_float = field.type.kind == "float"
        fill = 'float("nan")' if is_float else "0"
        parts = [this, f"fill_value={fill}", "axes=[0]", "shape=[1]"]
        lines += call(f"{this} = fn.pad(", parts, indent=1)
        lines.append(f"    {this} = fn.squeeze({this}, axes=[0])")
    elif field.sizes_in is not None and not field.is_optional:
        lines += call(f"{this} = fn.reshape(", [this, f"shape={_sizes(field)}"], indent=1)
    elif _is_padded(field) and shape is not None and len(shape) > 1 and shape[0] is not None:
        sizes = [-1 if n is None else n for n in shape]
        if sizes.count(-1) < 2:
            lines.append(f"    {this} = fn.reshape({this}, shape={literal(sizes)})")
    wire = _WIRE_DTYPES[field.type.kind or "int64"]
    if dtype not in (None, wire):
        lines += call(
            f"{this} = fn.cast(", [this, f"dtype=types.{_TYPES[dtype or wire]}"], indent=1
        )
    if _is_padded(field):
        lines += comment(
            f"{quoted(field.name)} varies in length; fn.pad({this}) pads a batch to one tensor.",
            indent=1,
        )
    return lines


def _sizes(field: Field) -> str:
    """Return the expression of the shapes of a feature's values, for DALI."""
    return f"fn.cast(record[{quoted(field.sizes_in or '')}], dtype=types.INT32)"


def _decoded(field: Field, this: str) -> list[str]:
    if not _is_decoded(field):
        return comment(
            f"{quoted(field.name)} is left as the bytes of a file: DALI decodes no "
            f"{field.type.format}.",
            indent=1,
        )
    lines = []
    parts = [this, 'device="cpu"']
    resize = [this, "size=IMAGE_SIZE"]
    if field.is_mask:
        parts.append("output_type=types.GRAY")
        resize.append("interp_type=types.INTERP_NN")
        if field.type.format != "jpeg":
            lines += comment(
                "For a mask with a palette, DALI returns grey values of its colours, not classes.",
                indent=1,
            )
    lines += call(f"{this} = fn.decoders.image(", parts, indent=1)
    return lines + call(f"{this} = fn.resize(", resize, indent=1)


def _main() -> list[str]:
    return [
        'if __name__ == "__main__":',
        "    reading = pipeline()",
        "    reading.build()",
        *comment(
            'An epoch has reading.epoch_size("reader") records; the last batch is filled up with '
            "records of the next epoch.",
            indent=1,
        ),
        "    for name, values in zip(FEATURES, reading.run()):",
        "        print(name, values.dtype, values.shape())",
    ]
