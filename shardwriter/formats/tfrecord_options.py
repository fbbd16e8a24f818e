"""What the second argument of ``tf.io.TFRecordWriter`` says: whole files of gzip or zlib.

They are what TensorFlow's own writer makes, one stream from the first record to the last. The
compressed shards of a dataset are others: cut at records, see `compressed_writer`.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final

from shardwriter.errors import OptionError

_GZIP_WBITS: Final = 15 + 16
_ZLIB_WBITS: Final = 15
_MEM_LEVEL: Final = 9  # TensorFlow's

_WBITS: Final[Mapping[Any, int | None]] = {
    # The names, and the numbers of tf.compat.v1's TFRecordCompressionType.
    None: None,
    "": None,
    "NONE": None,
    0: None,
    "ZLIB": _ZLIB_WBITS,
    1: _ZLIB_WBITS,
    "GZIP": _GZIP_WBITS,
    2: _GZIP_WBITS,
}


def compressor_of(options: Any) -> Any:
    """Return what compresses a file, as ``zlib.compressobj``; None where nothing does.

    Args:
        options: ``"GZIP"``, ``"ZLIB"``, ``""``, None, or an object with their attributes such as
            ``tf.io.TFRecordOptions``.

    Raises:
        OptionError: It is something else.
    """
    kind = getattr(options, "compression_type", options)
    if kind is not options and hasattr(kind, "compression_type"):
        return compressor_of(kind)  # options made of options
    name = kind.upper() if isinstance(kind, str) else kind
    if not (name is None or isinstance(name, (str, int))) or name not in _WBITS:
        raise OptionError(
            f"{kind!r} is no compression of a TFRecord file",
            hint='"GZIP", "ZLIB", "" for none, or a tf.io.TFRecordOptions',
        )
    wbits = _WBITS[name]
    if wbits is None:
        return None

    def given(attribute: str, default: int) -> int:
        value = getattr(options, attribute, None)
        return default if value is None else int(value)

    return zlib.compressobj(
        given("compression_level", zlib.Z_DEFAULT_COMPRESSION),
        zlib.DEFLATED,
        given("window_bits", wbits),
        given("mem_level", _MEM_LEVEL),
        given("compression_strategy", zlib.Z_DEFAULT_STRATEGY),
    )
