"""Splits: which part of the items each of several datasets has, and what they are called.

``train=0.9,val=0.1`` divides the items by their keys, the rule "blake2b-split/1" (F2): an item's
key is its bytes (what the source calls it in UTF-8, else its place in the source as u64,
little-endian; or the key that is a feature of it), and its hash is BLAKE2b of the key with

- ``digest_size`` 8, read as u64, little-endian;
- ``key``: the seed as u64, little-endian;
- ``person``: ``shardwriter.splt``.

With c_j, the exact decimal sum of the first j fractions, split j has the items whose hash h is
floor(c_(j-1) 2^64) <= h < floor(c_j 2^64). So what else is in the data moves no item.

``source`` takes the splits that the source has itself, ``train,val`` those two of them.
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
_EXACT: Final = r"^(1|0?\.[0-9]+)$"  # no exponent, which could make a number of 10^9 digits
_DECIMAL: Final = re.compile(r"[0-9]+(\.[0-9]+)?|\.[0-9]+")
_SHARDS: Final = re.compile(r"[1-9][0-9]{0,5}|auto")
_GRAMMAR: Final = (
    "train=0.9,val=0.1 divides the items; source takes the splits that the source has, and "
    "train,val those two of them; N of each: train=0.9@16,val=0.1@2, or train@16,val@2"
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
        name: What it is called.
        fractions: All splits of the write with their fractions; none where the source gives them.
        seed: The salt of the hash; another one divides the items otherwise.
    """

    name: str
    fractions: Fractions = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 64:
            raise OptionError(f"split_seed is {self.seed!r}: it is a number from 0 to 2^64 - 1")

    @property
    def is_by_key(self) -> bool:
        """Whether the keys of the items decide, and not the source."""
        return bool(self.fractions)

    @property
    def number(self) -> int:
        """Its place among the fractions."""
        return [name for name, _ in self.fractions].index(self.name)

    def numbers_of(self, keys: Iterable[bytes]) -> NDArray[np.uint8]:
        """Return uint8[n]: the place among the fractions of the split that each of n keys is of."""
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
        """Read a manifest's ``order.split``.

        Raises:
            ValueError: Its fractions do not divide the items, or its seed is none.
        """
        fractions = tuple((name, fraction) for name, fraction in entry.get("fractions", ()))
        if fractions:
            names = [name for name, _ in fractions]
            is_whole = sum((Fraction(fraction) for _, fraction in fractions), Fraction()) == 1
            if len({*names}) < len(names) or entry["name"] not in names or not is_whole:
                raise ValueError("its split's fractions do not sum to 1, or are of other names")
        return cls(entry["name"], fractions, entry.get("seed", 0))


def split_hashes(keys: Iterable[bytes], seed: int) -> NDArray[np.uint64]:
    """Return uint64[n]: by what n keys are divided."""
    empty = blake2b(digest_size=8, key=seed.to_bytes(8, "little"), person=_PERSON)
    digests = []
    for key in keys:
        hasher = empty.copy()
        hasher.update(key)
        digests.append(hasher.digest())
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def position_key(place: int) -> bytes:
    """Return the key of an item that has no name: its place in the source."""
    return place.to_bytes(8, "little")


def _bounds(fractions: Fractions) -> NDArray[np.uint64]:
    """Return where the range of a split ends and that of the next begins."""
    sums = accumulate(Fraction(fraction) for _, fraction in fractions[:-1])
    return np.array([int(c * (1 << 64)) for c in sums], np.uint64)


# -- what a person says ----------------------------------------------------------------------------


@dataclass(frozen=True)
class SplitOption:
    """What ``--split`` says.

    Attributes:
        names: The splits, in order; none: all that the source has.
        fractions: Names and exact decimals that sum to 1; none where the source gives the splits.
        num_shards: N of a split, ``None`` for a chosen one; where it is not said, there is no such
            entry.
    """

    names: tuple[str, ...]
    fractions: Fractions
    num_shards: Mapping[str, int | None]

    @property
    def is_by_key(self) -> bool:
        """Whether the keys of the items decide, and not the source."""
        return bool(self.fractions)

    def splits(self, seed: int, names: Iterable[str] | None = None) -> list[Split]:
        """Return the splits; of a source those of these names."""
        found = self.names if names is None else names
        return [Split(name, self.fractions, seed if self.is_by_key else 0) for name in found]


def parse_split_option(split: str | Mapping[str, Any]) -> SplitOption:
    """Understand ``--split``.

    Args:
        split: ``train=0.9,val=0.1``, ``train=0.9@16,val=0.1@2``, ``source``, ``train,val``,
            ``train@16,val@2``; or a mapping from names to fractions, which may be floats (0.1 is
            the decimal 0.1).

    Raises:
        OptionError: It is none of these, or the fractions do not sum to 1.
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
            raise OptionError(f"--split {split!r}: {text!r} names no split", hint=_GRAMMAR)
        check_split_name(name)
        if name in names:
            raise OptionError(f"--split {split!r}: {name!r} is there twice", hint=_GRAMMAR)
        names.append(name)
        if match["fraction"] is not None:
            fractions.append((name, _fraction(name, match["fraction"].strip())))
        if match["n"] is not None:
            num_shards[name] = _num_shards(name, match["n"].strip())
    if fractions and len(fractions) < len(names):
        without = next(name for name in names if name not in dict(fractions))
        raise OptionError(
            f"--split {split!r}: {without!r} has no fraction, and {fractions[0][0]!r} has one",
            hint=_GRAMMAR,
        )
    if len(names) > MAX_SPLITS:
        raise OptionError(f"--split names {len(names)} splits, more than {MAX_SPLITS}")
    total = sum((Fraction(fraction) for _, fraction in fractions), Fraction())
    if fractions and total != 1:
        off = _decimal(abs(1 - total))
        raise OptionError(
            f"--split {split!r}: the fractions sum to {_decimal(total)}, and not to 1",
            hint=f"give a further split the {off} that is left: rest={off}"
            if total < 1
            else f"take {off} away",
        )
    return SplitOption(tuple(names), tuple(fractions), num_shards)


def check_split_name(name: str) -> None:
    """Refuse a name that could not stand in the name of a dataset.

    Raises:
        OptionError: It is one.
    """
    if not _NAME.fullmatch(name) or name == FROM_SOURCE:
        raise OptionError(
            f"{name!r} can not be the name of a split",
            hint="use letters, digits, - and _, as in train; 'source' has a meaning of its own",
        )


def _text(value: Any) -> str:
    """Return a fraction as it is written; a float as the shortest decimal that it is."""
    if isinstance(value, (float, np.floating)):
        return format(Decimal(repr(float(value))), "f")
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _fraction(name: str, text: str) -> str:
    value = Decimal(text) if _DECIMAL.fullmatch(text) else Decimal(0)
    if not 0 < value <= 1:
        raise OptionError(
            f"--split {name}={text}: a fraction is a decimal above 0 and up to 1", hint=_GRAMMAR
        )
    # 0.90 and 0.9 are one job.
    exact = format(value, "f")
    return exact.rstrip("0").rstrip(".") if "." in exact else exact


def _decimal(value: Fraction) -> str:
    """Return a sum of decimals with all of its digits."""
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
