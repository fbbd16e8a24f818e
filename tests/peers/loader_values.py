"""Values as bytes, so that what was written and what a program has read can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import numpy as np


def canonical(value: Any) -> bytes:
    """Return a value with its dtype and shape as bytes; texts are UTF-8."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, (list, tuple)):
        parts = [canonical(part) for part in value]
        return b"".join(b"%d:" % len(part) + part for part in parts)
    array = np.asarray(value)
    return f"{array.dtype.name}{list(array.shape)}".encode() + array.tobytes()


def row_digest(row: Mapping[str, Any]) -> str:
    """Return a digest of a row, whatever the order of its features."""
    total = sha256()
    for name in sorted(row):
        data = canonical(row[name])
        total.update(f"{name} {len(data)} ".encode() + data)
    return total.hexdigest()


def digests(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the digest of each row."""
    return [row_digest(row) for row in rows]
