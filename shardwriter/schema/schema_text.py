"""The short form of a schema: ``image=uint8[28,28],tokens=int64[null],mask=raw:uint8[null,null]``.

::

    schema   feature, feature, ...
    feature  NAME=TYPE            NAME holds no comma
    TYPE     image                the bytes of an image file
             DTYPE                of any shape
             DTYPE[SIZE,...]      of this shape: [] a single value, null a dimension that varies
             int64:UNIT           times of a table's column as integers: days, s, ms, us or ns
             raw:DTYPE[...]       one bytes value: the array's bytes, in C order, little-endian
    DTYPE    bytes, string, float (float32), or bool, int8 ... uint64, float16, float32, float64;
             raw takes complex64, complex128 and bfloat16 too

The floats of an Example are float32, so that ``float64`` is the same as ``raw:float64``.
"""

from __future__ import annotations

import re
from typing import Final

from shardwriter.errors import OptionError
from shardwriter.formats.raw_array import RAW_DTYPES
from shardwriter.schema.feature_types import TIME_UNITS, FeatureType, Shape

LIST_DTYPES: Final = {
    "bytes": ("bytes", "bytes"),
    "string": ("bytes", "string"),
    "float": ("float", "float32"),
    **{f"float{bits}": ("float", f"float{bits}") for bits in (16, 32)},
    "float64": ("float", "float32"),  # as manifests once called it; see `exact_type`
    **{f"int{bits}": ("int64", f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": ("int64", f"uint{bits}") for bits in (8, 16, 32, 64)},
    "bool": ("int64", "bool"),
}
"""Kind and dtype by the name in a schema, for values that are listed one by one."""

IMAGE: Final = FeatureType("bytes", "bytes", (), "image")

_FEATURE: Final = re.compile(
    r"\s*(?P<name>[^,]*?)\s*=\s*(?P<type>[^=,\[\]]*(\[[^\[\]=]*\])?)\s*(?:,|$)"
)
_TYPE: Final = re.compile(
    r"(?P<raw>raw:)?\s*(?P<dtype>\w+)(:(?P<unit>\w+))?\s*(?P<shape>\[[^\[\]]*\])?"
)
_HINT: Final = (
    "a type is int64, float, bytes, string, image (the bytes of a file), or a dtype and a shape, "
    "as in id=string,image=uint8[28,28],tokens=int64[null],mask=raw:uint8[null,null]"
)


def parse_schema_option(text: str) -> dict[str, FeatureType]:
    """Read ``--schema name=type,...``; the types are in the module's docstring.

    Raises:
        OptionError: Something else; says at which character.
    """
    types: dict[str, FeatureType] = {}
    at = 0
    while True:
        found = _FEATURE.match(text, at)
        if found is None or not found["name"]:
            part = text[at:].split(",")[0]
            raise _wrong(f"{part!r} is not NAME=TYPE", at)
        name = found["name"]
        if name in types:
            raise _wrong(f"{name!r} comes twice", at)
        try:
            types[name] = parse_type(found["type"])
        except ValueError as error:
            given = f"{name}={found['type']}"
            raise _wrong(f"{given!r} is not NAME=TYPE: {error}", found.start("type")) from None
        at = found.end()
        if at >= len(text) and not text.endswith(","):
            return types


def _wrong(what: str, at: int) -> OptionError:
    return OptionError(f"--schema, character {at + 1}: {what}", hint=_HINT)


def parse_type(text: str) -> FeatureType:
    """Read one TYPE.

    Raises:
        ValueError: It is none; the message says why.
    """
    found = _TYPE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no type")
    dtype, shape = found["dtype"], _parse_shape(found["shape"])
    if found["unit"]:
        if found["raw"] or dtype != "int64":
            raise ValueError(f"{text.strip()!r}: only int64 has a unit, as in int64:ms")
        return time_type(found["unit"], shape)
    if found["raw"] or dtype == "float64":
        return raw_type(dtype, shape)
    if dtype == "image":
        if shape is not None:
            raise ValueError("an image's file is one value, and has no shape here")
        return IMAGE
    return list_type(dtype, shape)


def list_type(dtype: str, shape: Shape | None) -> FeatureType:
    """Return the type of values that are listed one by one.

    Raises:
        ValueError: They can not be of this dtype.
    """
    known = LIST_DTYPES.get(dtype)
    if known is None:
        only_raw = dtype in RAW_DTYPES
        raise ValueError(
            f"{dtype!r} values have no place in a list: raw:{dtype} stores their bytes"
            if only_raw
            else f"{dtype!r} is no dtype"
        )
    return FeatureType(known[0], known[1], shape)  # type: ignore[arg-type]


def time_type(unit: str, shape: Shape | None) -> FeatureType:
    """Return the type of times as integers of a unit.

    Raises:
        ValueError: There is no such unit.
    """
    if unit not in TIME_UNITS:
        raise ValueError(f"{unit!r} is no unit of time: {', '.join(TIME_UNITS)}")
    return FeatureType("int64", "int64", shape, format=unit)


def exact_type(found: FeatureType) -> FeatureType:
    """Return the type that holds every digit: of float64 in a list that of its raw bytes."""
    is_wide = (found.kind, found.dtype, found.encoding) == ("float", "float64", "list")
    return raw_type("float64", found.shape) if is_wide else found


def raw_type(dtype: str, shape: Shape | None) -> FeatureType:
    """Return the type of an array that is stored as its bytes.

    Raises:
        ValueError: It can not be of this dtype.
    """
    if dtype not in RAW_DTYPES:
        raise ValueError(f"{dtype!r} is no dtype of raw bytes: {', '.join(RAW_DTYPES)}")
    return FeatureType("bytes", dtype, shape, "raw")


def type_text(feature_type: FeatureType) -> str:
    """Return a type as a person writes it."""
    if feature_type.encoding == "image":
        return "image"
    shape = feature_type.shape
    sizes = "" if shape is None else f"[{','.join('null' if n is None else str(n) for n in shape)}]"
    unit = f":{feature_type.format}" if feature_type.format in TIME_UNITS else ""
    is_raw = feature_type.encoding == "raw" and feature_type.dtype != "float64"
    return f"{'raw:' if is_raw else ''}{feature_type.dtype}{unit}{sizes}"


def summary_text(feature_type: FeatureType) -> str:
    """Return a type in few words: ``float32``, ``uint8[28,28]``, ``encoded jpeg``."""
    if feature_type.encoding == "image":
        return f"encoded {feature_type.format or 'image'}"
    if feature_type.kind is None:
        return "never set"
    return type_text(feature_type).removesuffix("[]")


def _parse_shape(text: str | None) -> Shape | None:
    if text is None:
        return None
    sizes = text[1:-1].strip()
    if not sizes:
        return ()
    shape: list[int | None] = []
    for size in map(str.strip, sizes.split(",")):
        if size != "null" and not (size.isascii() and size.isdigit()):
            raise ValueError(f"{size!r} in {text} is no size: a number, or null where it varies")
        shape.append(None if size == "null" else int(size))
    return tuple(shape)
