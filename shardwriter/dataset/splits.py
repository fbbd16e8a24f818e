"""Splits: divide the items of a source among several datasets.

``train=0.9,val=0.1`` divides the items by key with the rule "blake2b-split/1". An item's key
is its name in the source in UTF-8, else its position in the source as u64, little-endian; or the
value of a key feature. Its hash is BLAKE2b of the key with

- ``digest_size`` 8, read as u64, little-endian;
- ``key``: the seed as u64, little-endian;
- ``person``: ``shardwriter.splt``.

With c_j, the exact decimal sum of the first j fractions, split j has the items whose hash h is
floor(c_(j-1) 2^64) <= h < floor(c_j 2^64). So adding or removing items does not move others.

``source`` takes all splits of the source, ``train,val`` two of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b
from itertools import accumulate
from typing import Annotated, Any, Final, TypedDict

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import OptionError

ALGORITHM: Final = "blake2b-split/1"
FROM_SOURCE: Final = "source"
MAX_SPLITS: Final = 255

_PERSON: Final = b"shardwriter.splt"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_ENTRY: Final = re.compile(r"(?P<name>[^=@]*)(?:=(?P<fraction>[^=@]*))?(?:@(?P<n>[^=@]*))?")
_EXACT: Final = r"^(1|0?\.[0-9]+)$"  # no exponent, which could mean a number of 10^9 digits
_DECIMAL: Final = re.compile(r"[0-9]+(\.[0-9]+)?|\.[0-9]+")
_SHARDS: Final = re.compile(r"[1-9][0-9]{0,5}|auto")
_GRAMMAR: Final = (
    "train=0.9,val=0.1 divides the items; source takes all splits of the source, train,val two "
    "of them; with numbers of shards: train=0.9@16,val=0.1@2 or train@16,val@2"
)

Fractions = tuple[tuple[str, str], ...]
"""Names and exact decimals, in the order in which they divide the range of hashes."""


class _SplitEntryKeys(TypedDict):
    name: str


class SplitEntry(_SplitEntryKeys, total=False):
    """A manifest's ``order.split``."""

    fractions: list[tuple[str, Annotated[str, msgspec.Meta(pattern=_EXACT)]]]
    seed: int
    feature: str


@dataclass(frozen=True)
class Split:
    """One of the splits of a write.

    Attributes:
        name: Its name.
        fractions: All splits of the write with their fractions; empty for splits of the source.
        seed: The salt of the hash; another one divides the items differently.
    """

    name: str
    fractions: Fractions = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 64:
            raise OptionError(
                f"split_seed is {self.seed!r}", hint="give a number from 0 to 2^64 - 1"
            )

    @property
    def is_by_key(self) -> bool:
        """Whether the keys of the items decide, and not the source."""
        return bool(self.fractions)

    @property
    def number(self) -> int:
        """Its index in ``fractions``."""
        return [name for name, _ in self.fractions].index(self.name)

    def numbers_of(self, keys: Iterable[bytes]) -> NDArray[np.uint8]:
        """Return uint8[n]: the index in ``fractions`` of the split of each of n keys."""
        hashes = split_hashes(keys, self.seed)
        return np.searchsorted(_bounds(self.fractions), hashes, side="right").astype(np.uint8)

    def to_json(self) -> dict[str, Any]:
        """Return the manifest's ``order.split``."""
        if not self.is_by_key:
            return {"algorithm": FROM_SOURCE, "name": self.name}
        return {
            "algorithm": ALGORITHM,
            "fractions": [list(entry) for entry in self.fractions],
            "name": self.name,
            "seed": self.seed,
        }

    @classmethod
    def from_json(cls, entry: SplitEntry) -> Split:
        """Return the split in a manifest's ``order.split``.

        Raises:
            ValueError: Its fractions do not sum to 1, or its name is not among them.
        """
        fractions = tuple((name, fraction) for name, fraction in entry.get("fractions", ()))
        if fractions:
            names = [name for name, _ in fractions]
            is_whole = sum((Fraction(fraction) for _, fraction in fractions), Fraction()) == 1
            if len({*names}) < len(names) or entry["name"] not in names or not is_whole:
                raise ValueError("its split's fractions do not sum to 1, or have other names")
        return cls(entry["name"], fractions, entry.get("seed", 0))


def split_hashes(keys: Iterable[bytes], seed: int) -> NDArray[np.uint64]:
    """Return uint64[n]: the hashes of n keys, by which items are divided."""
    empty = blake2b(digest_size=8, key=seed.to_bytes(8, "little"), person=_PERSON)
    digests = []
    for key in keys:
        hasher = empty.copy()
        hasher.update(key)
        digests.append(hasher.digest())
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def position_key(position: int) -> bytes:
    """Return the key of an item without a name, from its position in the source."""
    return position.to_bytes(8, "little")


def _bounds(fractions: Fractions) -> NDArray[np.uint64]:
    """Return the hashes at which the range of each split but the last ends."""
    sums = accumulate(Fraction(fraction) for _, fraction in fractions[:-1])
    return np.array([int(c * (1 << 64)) for c in sums], np.uint64)


# -- the option ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SplitOption:
    """A parsed ``--split``.

    Attributes:
        names: The splits, in order; empty for all splits of the source.
        fractions: Names and exact decimals that sum to 1; empty for splits of the source.
        num_shards: N by split, for splits that have one; None for ``@auto``.
    """

    names: tuple[str, ...]
    fractions: Fractions
    num_shards: Mapping[str, int | None]

    @property
    def is_by_key(self) -> bool:
        """Whether the keys of the items decide, and not the source."""
        return bool(self.fractions)

    def splits(self, seed: int, names: Iterable[str] | None = None) -> list[Split]:
        """Return the splits; ``names`` are those of the source for ``source``."""
        chosen = self.names if names is None else names
        return [Split(name, self.fractions, seed if self.is_by_key else 0) for name in chosen]


def parse_split_option(split: str | Mapping[str, Any]) -> SplitOption:
    """Return the parsed ``--split``.

    Args:
        split: ``train=0.9,val=0.1``, ``train=0.9@16,val=0.1@2``, ``source``, ``train,val``,
            ``train@16,val@2``; or a mapping from names to fractions, which may be floats (0.1 is
            the decimal 0.1).

    Raises:
        OptionError: It is malformed, or the fractions do not sum to 1.
    """
    if isinstance(split, Mapping):
        split = ",".join(f"{name}={_text(value)}" for name, value in split.items())
    if not isinstance(split, str):
        raise OptionError(f"split is of type {type(split).__name__}", hint=_GRAMMAR)
    if split.strip() == FROM_SOURCE:
        return SplitOption((), (), {})
    names: list[str] = []
    fractions: list[tuple[str, str]] = []
    num_shards: dict[str, int | None] = {}
    for text in (entry.strip() for entry in split.split(",")):
        match = _ENTRY.fullmatch(text)
        name = match["name"].strip() if match else ""
        if match is None or not name:
            raise OptionError(f"--split {split!r}: {text!r} has no split name", hint=_GRAMMAR)
        check_split_name(name)
        if name in names:
            raise OptionError(f"--split {split!r}: {name!r} is given twice", hint=_GRAMMAR)
        names.append(name)
        if match["fraction"] is not None:
            fractions.append((name, _fraction(name, match["fraction"].strip())))
        if match["n"] is not None:
            num_shards[name] = _num_shards(name, match["n"].strip())
    if fractions and len(fractions) < len(names):
        without = next(name for name in names if name not in dict(fractions))
        raise OptionError(
            f"--split {split!r}: {without!r} has no fraction, but {fractions[0][0]!r} has one",
            hint=_GRAMMAR,
        )
    if len(names) > MAX_SPLITS:
        raise OptionError(f"--split has {len(names)} splits, the limit is {MAX_SPLITS}")
    total = sum((Fraction(fraction) for _, fraction in fractions), Fraction())
    if fractions and total != 1:
        off = _decimal(abs(1 - total))
        raise OptionError(
            f"--split {split!r}: the fractions sum to {_decimal(total)}, not to 1",
            hint=f"add a split for the remaining {off}: rest={off}"
            if total < 1
            else f"reduce the fractions by {off}",
        )
    return SplitOption(tuple(names), tuple(fractions), num_shards)


def check_split_name(name: str) -> None:
    """Raise if a split name can not be part of a dataset's name.

    Raises:
        OptionError: The name is invalid.
    """
    if not _NAME.fullmatch(name) or name == FROM_SOURCE:
        raise OptionError(
            f"{name!r} can not be the name of a split",
            hint="use letters, digits, - and _, as in train; 'source' is reserved",
        )


def _text(value: Any) -> str:
    """Return a fraction as text; a float as its shortest decimal."""
    if isinstance(value, (float, np.floating)):
        return format(Decimal(repr(float(value))), "f")
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _fraction(name: str, text: str) -> str:
    value = Decimal(text) if _DECIMAL.fullmatch(text) else Decimal(0)
    if not 0 < value <= 1:
        raise OptionError(
            f"--split {name}={text}: a fraction is a decimal above 0 and at most 1", hint=_GRAMMAR
        )
    # 0.90 and 0.9 have to give the same job hash.
    exact = format(value, "f")
    return exact.rstrip("0").rstrip(".") if "." in exact else exact


def _decimal(value: Fraction) -> str:
    """Return a sum of decimals as text with all digits."""
    num_places = 0
    while (scaled := value * 10**num_places).denominator != 1:
        num_places += 1
    digits = str(int(scaled)).rjust(num_places + 1, "0")
    return f"{digits[:-num_places]}.{digits[-num_places:]}" if num_places else digits


def _num_shards(name: str, text: str) -> int | None:
    if not _SHARDS.fullmatch(text):
        raise OptionError(
            f"--split {name}@{text}: N is a number from 1 to 999,999 or 'auto'", hint=_GRAMMAR
        )
    return None if text == "auto" else int(text)
