"""Finding records by a value: which record it is, of which item, and where it stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import translate
from glob import has_magic
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import OptionError, WireError
from shardwriter.formats import decode_columns, decode_example, dtype_named
from shardwriter.reading.dataset import Dataset
from shardwriter.reading.opening import open_dataset
from shardwriter.schema import FeatureType

_BLOCK_RECORDS: Final = 1024
_BLOCK_BYTES: Final = 1 << 20
_TRUTHS: Final = {"true": 1, "false": 0}


@dataclass(frozen=True)
class FoundRecord:
    """A record that holds the value.

    Attributes:
        index: Its number in reading order.
        source_index: The item that it was made of, in source order.
        path: The shard.
        shard: Its number.
        record_index: The record's number in the shard.
    """

    index: int
    source_index: int
    path: str
    shard: int
    record_index: int


def find_records(
    path: str,
    wanted: WantedValue,
    *,
    notify: Callable[[str], None] | None = None,
) -> Generator[FoundRecord, None, None]:
    """Yield the records of which a feature holds a value, in reading order.

    All records are read, one block at a time; whoever has found enough stops.

    Args:
        path: What means one shard set; see :func:`shardwriter.sources.shard_sets.find_shard_sets`.
        wanted: The feature and its value.
        notify: Told what is worth knowing, a line at a time.

    Raises:
        OptionError: The path names nothing, or several datasets, or the manifest knows of no such
            feature.
        CorruptFile: A record on the way is damaged.
        StorageError: A shard can not be read.
    """
    with open_dataset(path, decode=False, notify=notify) as dataset:
        _check_name(dataset, wanted.feature)
        known = dataset.features.get(wanted.feature) if dataset.features else None
        if known is not None:
            wanted.of_type(known.type)
        first = 0
        for block in _blocks(dataset):
            for row in wanted.rows(block):
                place = dataset.place(first + row)
                yield FoundRecord(
                    first + row,
                    dataset.source_index(first + row),
                    place.path,
                    place.shard_index,
                    place.record_index,
                )
            first += len(block)


def _check_name(dataset: Dataset, feature: str) -> None:
    known = dataset.features
    if not known or feature in known:
        return
    close = get_close_matches(feature, known, n=3)
    raise OptionError(
        f"there is no feature {feature!r}",
        hint=f"did you mean {' or '.join(close)}?" if close else f"there is {', '.join(known)}",
        path=dataset.path,
    )


def _blocks(dataset: Dataset) -> Iterator[list[bytes]]:
    block: list[bytes] = []
    num_bytes = 0
    for payload in dataset:
        block.append(payload)
        num_bytes += len(payload)
        if len(block) == _BLOCK_RECORDS or num_bytes >= _BLOCK_BYTES:
            yield block
            block, num_bytes = [], 0
    if block:
        yield block


class WantedValue:
    """A value to look for, in each of the kinds that it can be stored as.

    Bytes have to be the text's UTF-8, or match it as a pattern (``*``, ``?``, ``[...]`` as in
    :mod:`fnmatch`). Ints and floats have to be the number that the text is, floats rounded to
    float32 but those of raw arrays to their dtype; ``true`` and ``false`` are 1 and 0. A list holds
    the value if one of its items does.

    Attributes:
        feature: The feature's name.
        text: The value as text.
        part_of: The first bytes met of which the text is only a part; None where there were none.
    """

    def __init__(self, feature: str, text: str, *, exact: bool = False) -> None:
        """Take the value apart.

        Args:
            feature: The feature's name.
            text: The value; what a command line has that is no UTF-8 comes as surrogates.
            exact: Whether ``*``, ``?`` and ``[`` stand for themselves.
        """
        self.feature = feature
        self.text = text
        self.part_of: bytes | None = None
        self._name = feature.encode(errors="surrogateescape")
        self._blob = text.encode(errors="surrogateescape")
        self._pattern: re.Pattern[str] | None = None
        pieces = [text]
        if not exact and has_magic(text):
            self._pattern = re.compile(translate(text))
            # A bracket may hold any character: around the first and last wildcard all is literal.
            pieces = re.split(
                r"[*?]" if "[" not in text else r"[*?\[](?:.*[*?\]])?", text, flags=re.S
            )
        self._pieces = [piece.encode(errors="surrogateescape") for piece in pieces]
        self._int: int | None = _TRUTHS.get(text.lower())
        self._float: np.float32 | None = None
        with suppress(ValueError):
            self._int = int(text)
        with suppress(ValueError), np.errstate(over="ignore"):
            self._float = np.float32(float(text))
        self._raw: np.dtype[Any] | None = None
        self._raw_value: np.generic | None = None

    def of_type(self, found: FeatureType) -> None:
        """Take the value as one of the feature's type, which the manifest states."""
        if found.encoding == "raw" and found.dtype:
            self._raw = dtype_named(found.dtype).newbyteorder("<")
            with suppress(ValueError, OverflowError), np.errstate(over="ignore"):
                self._raw_value = _number_of(self._raw, self.text)

    def rows(self, payloads: list[bytes]) -> list[int]:
        """Return which of some records hold it."""
        # Only these can; most records need not be decoded to be passed by.
        name, pieces = self._name, self._pieces
        if self._int is None and self._float is None and self._raw is None:
            rows = [i for i, p in enumerate(payloads) if name in p and all(x in p for x in pieces)]
        else:
            rows = [i for i, p in enumerate(payloads) if name in p]
        if not rows:
            return []
        try:
            column: Any = decode_columns([payloads[row] for row in rows]).get(self.feature, ())
        except WireError:
            column = [_decoded(payloads[row]).get(self.feature) for row in rows]
        held = self._held(column) if isinstance(column, np.ndarray) else map(self._holds, column)
        return [row for row, holds in zip(rows, held, strict=False) if holds]

    def _held(self, column: NDArray[Any]) -> list[bool]:
        number = self._float if column.dtype.kind == "f" else self._int
        if number is None:
            return [False] * len(column)
        held: list[bool] = np.asarray(_equal(column, number).any(axis=1)).tolist()
        return held

    def _holds(self, values: Any) -> bool:
        if isinstance(values, np.ndarray):
            return self._held(values[None])[0]
        if not isinstance(values, list):
            return False
        if self._blob in values:
            return True
        if self._raw is not None:
            return any(self._holds_raw(self._raw, blob) for blob in values)
        if self._pattern is not None:
            match = self._pattern.match
            return any(match(value.decode(errors="surrogateescape")) for value in values)
        if self.part_of is None:
            self.part_of = next((value for value in values if self._blob in value), None)
        return False

    def _holds_raw(self, dtype: np.dtype[Any], blob: bytes) -> bool:
        number = self._raw_value
        if number is None or len(blob) % dtype.itemsize:
            return False
        numbers = np.frombuffer(blob, dtype)
        is_nan = number != number
        return bool((numbers != numbers).any() if is_nan else (numbers == number).any())


def _number_of(dtype: np.dtype[Any], text: str) -> np.generic:
    """Return the number that a text is, as an array of raw bytes holds it.

    Raises:
        ValueError: It is none.
        OverflowError: The dtype does not hold it.
    """
    number: Any
    if dtype.kind in "biu":
        number = _TRUTHS.get(text.lower())
        number = int(text) if number is None else number
    else:
        number = complex(text) if dtype.kind == "c" else float(text)
    found: np.generic = dtype.type(number)
    return found


def _equal(values: NDArray[Any], number: int | np.float32) -> NDArray[np.bool_]:
    if isinstance(number, np.float32) and np.isnan(number):
        return np.asarray(np.isnan(values))
    if isinstance(number, int) and not -(1 << 63) <= number < 1 << 63:
        return np.zeros(values.shape, np.bool_)
    return np.asarray(values == number)


def _decoded(payload: bytes) -> dict[str, Any]:
    """Return an Example's features; none of what is something else."""
    try:
        return dict(decode_example(payload))
    except WireError:
        return {}
