"""Canonical JSON: one spelling for one value, so that equal facts are equal bytes."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from typing import Any, Final


def dumps(value: Any) -> str:
    """Return ASCII JSON with sorted keys, no spaces and a line end; NaN is refused."""
    text = json.dumps(
        value, ensure_ascii=True, sort_keys=True, separators=(",", ":"), allow_nan=False
    )
    return text + "\n"


def loads(text: str | bytes) -> Any:
    """Parse JSON and refuse an object that says one key twice.

    Raises:
        ValueError: It is no JSON, has a key twice, a number that is none, or nests too deep.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it nests too deep") from None


def digest(value: Any) -> str:
    """Return ``sha256:`` and the hash of a value's canonical JSON."""
    return "sha256:" + hashlib.sha256(dumps(value).encode("ascii")).hexdigest()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (math.inf, -math.inf):
        raise ValueError(f"{text:.20} is more than a float holds")
    return number


class RepeatedKey(ValueError):
    """One JSON object says a key twice."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a parsed object of its pairs; for ``object_pairs_hook``.

    Raises:
        RepeatedKey: A key stands twice.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise RepeatedKey(f"the key {twice!r} stands twice in one object")
    return found


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=unique_keys, parse_constant=_refuse_constant, parse_float=_finite
)
"""Made once: a journal has a million lines."""
