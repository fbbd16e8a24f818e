"""`find_records`: the records whose feature has a given value, with item, shard and position."""

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
_BOOLS: Final = {"true": 1, "false": 0}


@dataclass(frozen=True)
class FoundRecord:
    """A record that has the value.

    Attributes:
        index: Its number in reading order.
        source_index: Its item, in source order.
        path: The shard.
        shard: The shard's number.
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
    """Yield the records whose feature has a value, in reading order.

    Records are read in blocks, as far as the caller iterates.

    Args:
        path: The dataset; see `shardwriter.open`.
        wanted: The feature and its value.
        notify: Called with each note, a line of text.

    Raises:
        OptionError: The path matches nothing, or several datasets, or the manifest has no such
            feature.
        CorruptFile: A record on the way is damaged.
        StorageError: A shard can not be read.
    """
    with open_dataset(path, decode=False, notify=notify) as dataset:
        _check_name(dataset, wanted.feature)
        known = dataset.features.get(wanted.feature) if dataset.features else None
        if known is not None:
            wanted.set_type(known.type)
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
        hint=f"did you mean {' or '.join(close)}?" if close else f"features: {', '.join(known)}",
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
    """A value to find, given as text and compared with features of any kind.

    Bytes match if they are the text in UTF-8, or match it as a pattern (``*``, ``?``, ``[...]`` as
    in :mod:`fnmatch`). Ints and floats match if they equal the number in the text, rounded to
    float32 or, for raw arrays, to their dtype; ``true`` and ``false`` are 1 and 0. A list matches
    if one of its values does.

    Attributes:
        feature: The feature's name.
        text: The value as text.
        part_of: The first value found that contains the text without being equal; None if none.
    """

    def __init__(self, feature: str, text: str, *, exact: bool = False) -> None:
        """Parse the value.

        Args:
            feature: The feature's name.
            text: The value; bytes that are not UTF-8 are surrogates, as in ``sys.argv``.
            exact: Whether ``*``, ``?`` and ``[`` are literal characters.
        """
        self.feature = feature
        self.text = text
        self.part_of: bytes | None = None
        self._name = feature.encode(errors="surrogateescape")
        self._blob = text.encode(errors="surrogateescape")
        self._pattern: re.Pattern[str] | None = None
        literals = [text]
        if not exact and has_magic(text):
            self._pattern = re.compile(translate(text))
            # Brackets may contain wildcards: only the text before the first and after the last
            # wildcard is certainly literal.
            literals = re.split(
                r"[*?]" if "[" not in text else r"[*?\[](?:.*[*?\]])?", text, flags=re.S
            )
        self._literals = [part.encode(errors="surrogateescape") for part in literals]
        self._int: int | None = _BOOLS.get(text.lower())
        self._float: np.float32 | None = None
        with suppress(ValueError):
            self._int = int(text)
        with suppress(ValueError), np.errstate(over="ignore"):
            self._float = np.float32(float(text))
        self._raw: np.dtype[Any] | None = None
        self._raw_value: np.generic | None = None

    def set_type(self, found: FeatureType) -> None:
        """Interpret the value with the feature's type in the manifest."""
        if found.encoding == "raw" and found.dtype:
            self._raw = dtype_named(found.dtype).newbyteorder("<")
            with suppress(ValueError, OverflowError), np.errstate(over="ignore"):
                self._raw_value = _number_of(self._raw, self.text)

    def rows(self, payloads: list[bytes]) -> list[int]:
        """Return the rows of the payloads that match."""
        # A search in the raw bytes rules out most records before any decoding.
        name, literals = self._name, self._literals
        if self._int is None and self._float is None and self._raw is None:
            rows = [
                i for i, p in enumerate(payloads) if name in p and all(x in p for x in literals)
            ]
        else:
            rows = [i for i, p in enumerate(payloads) if name in p]
        if not rows:
            return []
        try:
            column: Any = decode_columns([payloads[row] for row in rows]).get(self.feature, ())
        except WireError:
            column = [_decoded(payloads[row]).get(self.feature) for row in rows]
        is_array = isinstance(column, np.ndarray)
        matches = self._column_matches(column) if is_array else map(self._matches, column)
        return [row for row, match in zip(rows, matches, strict=False) if match]

    def _column_matches(self, column: NDArray[Any]) -> list[bool]:
        number = self._float if column.dtype.kind == "f" else self._int
        if number is None:
            return [False] * len(column)
        matches: list[bool] = np.asarray(_equal(column, number).any(axis=1)).tolist()
        return matches

    def _matches(self, values: Any) -> bool:
        if isinstance(values, np.ndarray):
            return self._column_matches(values[None])[0]
        if not isinstance(values, list):
            return False
        if self._blob in values:
            return True
        if self._raw is not None:
            return any(self._raw_matches(self._raw, blob) for blob in values)
        if self._pattern is not None:
            match = self._pattern.match
            return any(match(value.decode(errors="surrogateescape")) for value in values)
        if self.part_of is None:
            self.part_of = next((value for value in values if self._blob in value), None)
        return False

    def _raw_matches(self, dtype: np.dtype[Any], blob: bytes) -> bool:
        number = self._raw_value
        if number is None or len(blob) % dtype.itemsize:
            return False
        numbers = np.frombuffer(blob, dtype)
        is_nan = number != number
        return bool((numbers != numbers).any() if is_nan else (numbers == number).any())


def _number_of(dtype: np.dtype[Any], text: str) -> np.generic:
    """Return the number in a text, as a scalar of a dtype.

    Raises:
        ValueError: The text is not a number.
        OverflowError: The number does not fit the dtype.
    """
    number: Any
    if dtype.kind in "biu":
        number = _BOOLS.get(text.lower())
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
    """Return an Example's features; {} if the payload is no Example."""
    try:
        return dict(decode_example(payload))
    except WireError:
        return {}
