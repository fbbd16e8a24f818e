"""Samples of a tar archive: neighbouring members whose names agree up to the first dot.

The rule is WebDataset's: the key is the path up to the first dot of the last name, the rest is the
extension, in lower case.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from shardwriter.errors import RecordTooLarge, SourceError
from shardwriter.formats.crc32c import extend_crc32c
from shardwriter.formats.tfrecord import MAX_PAYLOAD_BYTES
from shardwriter.sources.positions import InputFile, OffsetTable, file_changed
from shardwriter.sources.tar_members import Bytes, Member, PositionedBytes, cut_member, walk

_BATCH: Final = 1 << 16
_META: Final = re.compile(r"__[^/]*__($|/)")  # WebDataset's own members


class Sample(NamedTuple):
    """One sample: extensions and bytes in the order of the archive."""

    key: str
    members: tuple[tuple[str, bytes], ...]
    num_bytes: int  # of all members; where these are too many, the members are left out


class Grouping:
    """Tells which members begin a sample, go on with it, or are none.

    Attributes:
        skipped: How many members were left out, by what they are.
        key: Of the sample at hand.
        extension: Of the member that was seen last.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: set[int] = set()  # hashes: keys of a large archive would take much memory
        self.skipped: Counter[str] = Counter()
        self.key: str | None = None
        self.extension = ""

    def begins(self, member: Member) -> bool | None:
        """Return whether the member begins a sample; None where it is left out.

        Raises:
            SourceError: Its key was that of an earlier sample, or is not UTF-8.
        """
        reason, key, extension = _parse(member)
        if reason:
            self.skipped[reason] += 1
            return None
        self.extension = extension
        if key == self.key:
            return False
        try:
            member.name.encode("utf-8")
        except UnicodeEncodeError:
            raise SourceError(
                f"the name of the member {member.name!a} is not UTF-8",
                path=self._path,
                offset=member.begin,
                hint="rename it and make the tar again",
            ) from None
        if hash(key) in self._seen:
            raise SourceError(
                f"the key {key!r} comes back after other samples, in {member.name!r}",
                path=self._path,
                offset=member.begin,
                hint="members of one sample follow each other: tar --sort=name makes it so",
            )
        self._seen.add(hash(key))
        self.key = key
        return True


def _parse(member: Member) -> tuple[str, str, str]:
    """Return why a member is left out, or its key and extension."""
    if member.kind != "file":
        return "folders" if member.kind == "folder" else "links and devices", "", ""
    folder, slash, name = member.name.rpartition("/")
    base, _, extension = name.partition(".")
    if _META.match(member.name):
        return "members of WebDataset's own (__...__)", "", ""
    if name.startswith("."):
        return "hidden files", "", ""
    if not extension:
        return "files without an extension", "", ""
    return "", folder + slash + base, extension.lower()


def samples_in(data: Bytes, path: str, *, is_part: bool = False) -> Iterator[Sample]:
    """Yield every sample with its bytes.

    Raises:
        SourceError: The archive is damaged, or a key comes back.
    """
    grouping = Grouping(path)
    key: str | None = None
    members: list[tuple[str, bytes]] = []
    num_bytes = 0
    for member in walk(data, path, is_part=is_part):
        begins = grouping.begins(member)
        if begins is None:
            continue
        if begins:
            if key is not None:
                yield Sample(key, tuple(members), num_bytes)
            key, members, num_bytes = grouping.key, [], 0
        num_bytes += member.num_bytes
        if num_bytes > MAX_PAYLOAD_BYTES:
            members.clear()
            continue
        content = data.take(member.num_bytes)
        if len(content) < member.num_bytes:
            raise cut_member(member.name, path, data.at)
        members.append((grouping.extension, content))
    if key is not None:
        yield Sample(key, tuple(members), num_bytes)


class TarFile(InputFile):
    """One plain tar file, read by position: the members of a sample are one run of bytes.

    Attributes:
        num_samples: Its samples, once it was scanned.
        file_bytes: Its size.
        crc32c: Of the names and sizes of all members of samples.
        extensions: Those that there are, in order of their first member.
        skipped: How many members were left out, by what they are.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, None)
        self.num_samples = 0
        self.file_bytes = 0
        self.crc32c = 0
        self.extensions: dict[str, None] = {}
        self.skipped: Counter[str] = Counter()

    def scan(self, offsets: OffsetTable) -> None:
        """Go from header to header, and note where every sample begins and the last one ends.

        Raises:
            SourceError: The archive is damaged or cut off, or a key comes back.
        """
        self.file_bytes = self.num_bytes
        grouping = Grouping(self.path)
        starts: list[int] = []
        lines: list[str] = []
        end = 0
        for member in walk(PositionedBytes(self.read, self.file_bytes), self.path):
            if member.data_begin + member.num_bytes > self.file_bytes:
                raise cut_member(member.name, self.path, self.file_bytes)
            begins = grouping.begins(member)
            if begins is None:
                continue
            if begins:
                starts.append(member.begin)
            end = member.end
            self.extensions.setdefault(grouping.extension)
            lines.append(f"{member.name}\0{member.num_bytes}\n")
            if len(lines) >= _BATCH:
                self._add(offsets, starts, lines)
                starts, lines = [], []
        self._add(offsets, starts, lines)
        self.check_unchanged()
        offsets.add(np.array([end], np.int64))
        self.skipped = grouping.skipped

    def _add(self, offsets: OffsetTable, starts: list[int], lines: list[str]) -> None:
        offsets.add(np.array(starts, np.int64))
        self.num_samples += len(starts)
        self.crc32c = extend_crc32c(self.crc32c, "".join(lines).encode("utf-8"))

    def key(self, begin: int) -> str:
        """Return the key of the sample that begins at an offset."""
        data = PositionedBytes(self.read, self.file_bytes, begin)
        grouping = Grouping(self.path)
        grouping.begins(next(walk(data, self.path)))
        assert grouping.key is not None
        return grouping.key

    def sample(self, begin: int, end: int) -> Sample:
        """Read the sample in [begin, end).

        Raises:
            SourceError: It can not be read.
            SourceChanged: The file is not what it was when it was scanned.
        """
        check_size(end - begin, self.path, begin)
        span = self.read(begin, end)
        if len(span) != end - begin:
            raise file_changed(self.path)
        return next(
            samples_in(
                PositionedBytes(lambda first, last: span[first:last], len(span)),
                self.path,
                is_part=True,
            )
        )


def check_size(num_bytes: int, path: str, offset: int | None = None) -> None:
    """Refuse a sample that no record can hold.

    Raises:
        RecordTooLarge: It is one.
    """
    if num_bytes > MAX_PAYLOAD_BYTES:
        raise RecordTooLarge(
            f"the sample has {num_bytes:,} bytes, and a record less than 2 GiB",
            path=path,
            offset=offset,
        )
