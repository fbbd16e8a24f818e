"""Surveying a damaged dataset: which shards are whole, and which records of the others are good.

A shard whose bytes have the CRC that the manifest says is proven by that alone. Of any other the
records are read, each proven by its own CRCs, and brought to the places that they had.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset.manifest import SealedShard
from shardwriter.errors import CorruptFile
from shardwriter.formats.compression import Compression
from shardwriter.formats.crc32c import extend_crc32c
from shardwriter.formats.tfrecord import frame
from shardwriter.formats.tfrecord_reader import Defect, read_records
from shardwriter.inspect.known import Known
from shardwriter.inspect.salvage import Salvage
from shardwriter.storage.local import storage_errors

State = Literal["whole", "too-long", "damaged", "missing", "other-content"]
"""What a shard is.

``whole``: as it was. ``too-long``: as it was, with bytes behind it. ``other-content``: without a
fault, but other records than the manifest's, so none of them is proven to be of this dataset.
"""

_READ_BYTES: Final = 1 << 20
_MAX_DEFECTS: Final = 1000


@dataclass
class ShardSurvey:
    """What was found of one shard.

    Attributes:
        shard: Its number.
        state: What it is.
        file_bytes: Of the part of the file that is good as it is, for a shard that is ``whole`` or
            ``too-long``; else of the file.
        file_crc32c: CRC-32C of that part; None for others.
        compression: What the file is compressed with.
        places: int64[n]: of each record that was found good, in order, which of the shard's
            records it is; -1 where that is not known. None of a shard that is proven as a whole.
        num_records: Records that are good.
        payload_bytes: Their bytes.
        crc32c: CRC-32C of their frames.
        num_expected: Records that the shard had; None where that is not known.
        has_open_end: Whether records may be lost that nobody can count.
        has_trusted: Whether records are taken for good that nothing proves.
        defects: What is wrong, the first of it.
    """

    shard: int
    state: State
    file_bytes: int = 0
    file_crc32c: int | None = None
    compression: Compression = "none"
    places: NDArray[np.int64] | None = None
    num_records: int = 0
    payload_bytes: int = 0
    crc32c: int = 0
    num_expected: int | None = None
    has_open_end: bool = False
    has_trusted: bool = False
    defects: list[Defect] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether the bytes of the shard are there, all of them."""
        return self.state in ("whole", "too-long")

    @property
    def lost_places(self) -> NDArray[np.int64]:
        """int64[m]: which of the shard's records are lost, where it is known how many it had."""
        if self.is_good or self.num_expected is None:
            return np.zeros(0, np.int64)
        is_lost = np.ones(self.num_expected, bool)
        if self.places is not None:
            is_lost[self.places[self.places >= 0]] = False
        return np.flatnonzero(is_lost)

    @property
    def num_unplaced(self) -> int:
        """Records that are good, and nobody knows which of the shard's they are."""
        return 0 if self.places is None else int((self.places < 0).sum())


class _Prefix(NamedTuple):
    """The CRC-32C of a file's first bytes, and the size of all of it."""

    crc32c: int
    file_bytes: int


def survey_shard(
    known: Known,
    shard: int,
    *,
    trust_no_crc: bool = False,
    deep: bool = True,
    progress: Callable[[int], None] | None = None,
) -> ShardSurvey:
    """Find out what of a shard is good.

    Args:
        known: The dataset.
        shard: The shard.
        trust_no_crc: Whether records whose CRC fields are zero count as good.
        deep: Whether to look for records in a shard that is not proven by its CRC.
        progress: Told of bytes that were read.

    Raises:
        StorageError: The file can not be read.
    """
    expected = known.num_records(shard)
    path = known.files.get(shard)
    if path is None:
        return ShardSurvey(shard, "missing", num_expected=expected)
    told_bytes, told_crc = known.file_bytes(shard), known.file_crc32c(shard)
    prefix = _prefix(path, told_bytes, progress)
    if (
        known.manifest is not None
        and told_bytes is not None
        and (prefix.crc32c, min(prefix.file_bytes, told_bytes)) == (told_crc, told_bytes)
    ):
        told = known.manifest.shards[shard]
        return ShardSurvey(
            shard,
            "whole" if prefix.file_bytes == told_bytes else "too-long",
            told_bytes,
            told_crc,
            known.compression or "none",
            None,
            told.num_records,
            told.payload_bytes,
            told.crc32c,
            expected,
        )
    if not deep:
        return ShardSurvey(shard, "damaged", prefix.file_bytes, num_expected=expected)
    found = _salvaged(known, shard, path, trust_no_crc=trust_no_crc)
    found.file_bytes = prefix.file_bytes
    if progress is not None:
        progress(prefix.file_bytes)
    _judge(known, found, told_bytes, prefix)
    return found


def _judge(known: Known, found: ShardSurvey, told_bytes: int | None, prefix: _Prefix) -> None:
    """Tell a shard without a fault from one that only seems so."""
    assert found.places is not None
    without_fault = not (found.defects or found.has_open_end or found.has_trusted)
    is_all = found.num_expected in (None, found.num_records) and not found.num_unplaced
    if known.manifest is not None:
        detail = _how_other(known, known.manifest.shards, found, without_fault=without_fault)
        if detail is not None:
            found.defects.insert(0, Defect("other-content", 0, 0, detail, found.num_records))
            found.state = "other-content"
            found.places = np.full(len(found.places), -1, np.int64)
    elif (
        without_fault
        and is_all
        and told_bytes in (None, prefix.file_bytes)
        and known.compression in (None, found.compression)
        # Of members and blocks the frames are proven, and not what holds them together.
        and (
            found.compression == "none"
            or (prefix.file_bytes > 0 and _reads_through(known.path(found.shard)))
        )
    ):
        found.state = "whole"
        found.file_crc32c = prefix.crc32c


def _how_other(
    known: Known,
    shards: Sequence[SealedShard],
    found: ShardSurvey,
    *,
    without_fault: bool,
) -> str | None:
    """Say why a shard's records are not those of the manifest; None where they may be."""
    assert found.places is not None
    told = shards[found.shard]
    is_all = not len(found.lost_places)
    copied = _copied_from(known.path(found.shard), found.shard, shards)
    crc, is_alike = found.crc32c, False
    if is_all or without_fault or copied is not None:
        crc, is_alike = _read_again(known, found)
    if is_all and crc != told.crc32c:
        return "whole records, but not those of the manifest"
    if is_all or is_alike:
        return None
    if copied is not None:
        return f"it is a copy of shard {copied}"
    if not without_fault:
        return None
    if found.num_records >= told.num_records:
        return f"{found.num_records:,} whole records, the manifest says {told.num_records:,}"
    return None


def _copied_from(path: str, shard: int, shards: Sequence[SealedShard]) -> int | None:
    """Return the number of the other shard that a file is, byte for byte."""
    size = _size(path)
    crc: int | None = None
    for number, other in enumerate(shards):
        if number != shard and other.file_bytes == size and other.num_records:
            crc = _prefix(path, None, None).crc32c if crc is None else crc
            if crc == (other.crc32c if other.file_crc32c is None else other.file_crc32c):
                return number
    return None


def _read_again(known: Known, found: ShardSurvey) -> tuple[int, bool]:
    """Return the CRC-32C of the frames that have a place, and whether all records are the same."""
    assert found.places is not None
    salvage = Salvage(known.path(found.shard), known.compression, known.rows(found.shard))
    crc, first, is_alike = 0, None, True
    with storage_errors(salvage.path):
        for place, record in zip(found.places.tolist(), salvage.records(_ignore), strict=False):
            if place >= 0:
                crc = extend_crc32c(crc, frame(record.payload))
            first = record.payload if first is None else first
            is_alike = is_alike and record.payload == first
    return crc, is_alike and found.num_records > 1


def _ignore(_defect: Defect) -> None:
    return


def _reads_through(path: str) -> bool:
    """Tell whether a reader that knows nothing of the file takes all of it for right."""
    try:
        for _ in read_records(path):
            pass
    except CorruptFile:
        return False
    return True


def _salvaged(known: Known, shard: int, path: str, *, trust_no_crc: bool) -> ShardSurvey:
    """Read all good records of a shard, and find their places."""
    expected = known.num_records(shard)
    rows = known.rows(shard)
    # Shards of ours have no such records: zeros are what was never written, or is gone.
    trust_no_crc = trust_no_crc and not known.is_lawful
    salvage = Salvage(path, known.compression, rows, trust_no_crc=trust_no_crc)
    defects: list[Defect] = []

    has_trusted = False

    def note(defect: Defect) -> None:
        nonlocal has_trusted
        if trust_no_crc and defect.kind == "no-crc":
            has_trusted = True
            return
        if len(defects) < _MAX_DEFECTS:
            defects.append(defect)

    places, follows = array("q"), array("b")
    crc = payload_bytes = 0
    with storage_errors(path):
        for record in salvage.records(note):
            places.append(-1 if record.place is None else record.place)
            follows.append(record.follows)
            payload_bytes += len(record.payload)
            crc = extend_crc32c(crc, frame(record.payload))
    by_index = rows is not None and salvage.compression == known.compression
    number = np.frombuffer(places, np.int64).copy() if places else np.zeros(0, np.int64)
    behind = np.frombuffer(follows, np.int8) > 0 if follows else np.zeros(0, bool)
    if known.is_lawful and not by_index:
        has_its_size = known.file_bytes(shard) == _size(path)
        number = _placed(number, behind, expected, has_its_size, ends_whole=salvage.ends_whole)
    return ShardSurvey(
        shard,
        "damaged",
        compression=salvage.compression,
        places=number,
        num_records=len(number),
        payload_bytes=payload_bytes,
        crc32c=crc,
        num_expected=expected,
        has_open_end=not salvage.ends_whole or bool((number < 0).any()),
        has_trusted=has_trusted,
        defects=defects,
    )


def _placed(
    places: NDArray[np.int64],
    follows: NDArray[np.bool_],
    expected: int | None,
    has_its_size: bool,
    *,
    ends_whole: bool,
) -> NDArray[np.int64]:
    """Find the places of records behind a loss that could not be counted, where that can be done.

    Args:
        places: int64[n]: the place of each record, or -1.
        follows: bool[n]: whether it directly follows the one before it.
        expected: Records that the shard had.
        has_its_size: Whether the file has the size that it had, so that nothing has moved in it.
        ends_whole: Whether nothing is lost behind the last record.
    """
    if expected is None:
        return places
    places = np.where(places < expected, places, -1)
    unknown = places < 0
    if not unknown.any() or not has_its_size:
        return places
    num_holes = int((~follows).sum()) + (not ends_whole)
    if expected - len(places) == num_holes:  # each of them is one record
        return np.arange(len(places)) + np.cumsum(~follows)
    if ends_whole:
        last_hole = int(np.flatnonzero(~follows).max(initial=0))
        is_tail = np.arange(len(places)) >= last_hole
        from_end = expected - len(places) + np.arange(len(places))
        places = np.where(unknown & is_tail, from_end, places)
    return places


def _size(path: str) -> int:
    with storage_errors(path), open(path, "rb") as file:
        return file.seek(0, 2)


def _prefix(path: str, num_bytes: int | None, progress: Callable[[int], None] | None) -> _Prefix:
    """Return the CRC-32C of a file's first bytes, all of them where it is not said how many."""
    crc = size = 0
    with storage_errors(path), open(path, "rb", buffering=0) as file:
        file_bytes = file.seek(0, 2)
        file.seek(0)
        stop = file_bytes if num_bytes is None else min(num_bytes, file_bytes)
        while size < stop and (data := file.read(min(_READ_BYTES, stop - size))):
            crc = extend_crc32c(crc, data)
            size += len(data)
            if progress is not None:
                progress(len(data))
    return _Prefix(crc, file_bytes)
