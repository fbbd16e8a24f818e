"""Canonical JSON: equal values have equal bytes, so they can be hashed and compared."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from typing import Any, Final


def dumps(value: Any) -> str:
    """Return ASCII JSON with sorted keys, no spaces and a final newline; raise for NaN."""
    text = json.dumps(
        value, ensure_ascii=True, sort_keys=True, separators=(",", ":"), allow_nan=False
    )
    return text + "\n"


def loads(text: str | bytes) -> Any:
    """Return parsed JSON, strictly.

    Raises:
        ValueError: It is not JSON, repeats a key in an object, has NaN or an infinite number, or
            nests too deeply.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def digest(value: Any) -> str:
    """Return the hash of a value's canonical JSON: ``sha256:<hex>``."""
    return "sha256:" + hashlib.sha256(dumps(value).encode("ascii")).hexdigest()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if number in (math.inf, -math.inf):
        raise ValueError(f"{text:.20} is too large for a float")
    return number


class RepeatedKey(ValueError):
    """A JSON object has the same key twice."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object from its pairs; for ``object_pairs_hook``.

    Raises:
        RepeatedKey: A key appears twice.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise RepeatedKey(f"the key {twice!r} appears twice in one object")
    return found


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=unique_keys, parse_constant=_refuse_constant, parse_float=_finite
)
"""Shared: a journal has up to a million lines to parse."""
