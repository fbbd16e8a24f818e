"""``webdataset``: tar files of samples; a sample is a record.

Members that follow each other and agree up to the first dot of their names are a sample, which is
WebDataset's rule (:mod:`shardwriter.sources.webdataset`). Its features are ``__key__`` and one for
each extension. What a feature is follows from the last part of its extension alone: ``cls`` is an
integer as text, and becomes int64; ``txt`` and ``json`` are strings; names of image files have
images, and all else is bytes. Nothing is decoded but ``cls``.

Where WebDataset would split a sample in two, as its members do not follow each other, that is an
error here: an image and its label would come apart.

Of plain files a first pass over the headers finds where every sample begins, so that any of them is
at hand. Where a file is packed, all are streams: read once, front to back.
"""

from __future__ import annotations

import re
import stat
import tarfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, Final, Literal, NamedTuple, NoReturn, Protocol

import numpy as np

from shardwriter.errors import CorruptFile, RecordTooLarge, SourceError
from shardwriter.formats import EXTENSIONS, MAX_PAYLOAD_BYTES, OpenStream, extend_crc32c
from shardwriter.schema import FeatureType
from shardwriter.sources.positions import InputFile, OffsetTable, OpenFiles, file_changed
from shardwriter.storage import (
    InputChanged,
    absolute,
    common_folder,
    inputs_for,
    max_open_files,
    open_stream,
    printable,
    relative,
)

# Members of a tar archive, one header after the other.
#
# ``tarfile`` takes a header that is broken, or cut off, for the end of the archive, and what
# follows is lost without a word. Here an archive ends at its end marker (a block of zeros) and
# nowhere else. Single headers are parsed by ``tarfile``: ustar, GNU (long names) and PAX (``path``
# and ``size``).

_BLOCK: Final = tarfile.BLOCKSIZE
_ZEROS: Final = bytes(_BLOCK)
_WINDOW_BYTES: Final = 1 << 14  # read at a time to find headers
_STREAM_BYTES: Final = 1 << 20
_MOST_NAME_BYTES: Final = 1 << 20  # of a long name or the attributes of a member
PACKED: Final = {b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
"""How files begin that are packed in other ways than with gzip."""


class Member(NamedTuple):
    """What an archive says of a member."""

    name: str
    kind: Literal["file", "folder", "other"]
    begin: int  # of its first header
    data_begin: int
    num_bytes: int

    @property
    def end(self) -> int:
        """Where the next member begins: bytes are filled up to whole blocks."""
        return self.data_begin + _padded(self.num_bytes)


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _BLOCK) * _BLOCK


class Bytes(Protocol):
    """Bytes that are read front to back."""

    at: int

    def take(self, num_bytes: int) -> bytes:
        """Return the next bytes, fewer at the end."""

    def go_to(self, offset: int) -> bool:
        """Pass over all bytes before ``offset``; False where there are not so many."""


class PositionedBytes:
    """Bytes of a file that can be read by position.

    Args:
        read: Gives the bytes [begin, end).
        end: Where they end.
        at: Where they begin.
    """

    def __init__(self, read: Callable[[int, int], bytes], end: int, at: int = 0) -> None:
        self._read = read
        self._end = end
        self.at = at
        self._window, self._window_begin = b"", at

    def take(self, num_bytes: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        end = min(self.at + num_bytes, self._end)
        if not self._window_begin <= self.at <= end <= self._window_begin + len(self._window):
            window_end = min(max(end, self.at + _WINDOW_BYTES), self._end)
            self._window, self._window_begin = self._read(self.at, window_end), self.at
        begin = self.at - self._window_begin
        data = self._window[begin : end - self._window_begin]
        self.at += len(data)
        return data

    def go_to(self, offset: int) -> bool:
        """Pass over all bytes before ``offset``; False where there are not so many."""
        self.at = min(offset, self._end)
        return offset <= self._end


class StreamedBytes:
    """Bytes of a stream.

    Args:
        read: Gives up to so many bytes, none at the end.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._ahead = b""
        self.at = 0

    def take(self, num_bytes: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        parts = [self._ahead]
        missing = num_bytes - len(self._ahead)
        while missing > 0 and (data := self._read(_STREAM_BYTES)):
            parts.append(data)
            missing -= len(data)
        data = b"".join(parts)
        self._ahead = data[num_bytes:]
        self.at += min(num_bytes, len(data))
        return data[:num_bytes]

    def go_to(self, offset: int) -> bool:
        """Pass over all bytes before ``offset``; False where there are not so many."""
        while self.at < offset:
            if not self.take(min(offset - self.at, _STREAM_BYTES)):
                return False
        return True


def walk(data: Bytes, path: str, *, is_part: bool = False) -> Iterator[Member]:
    """Yield every member; its bytes may be taken then, or left.

    Args:
        data: The archive.
        path: Its name, for errors.
        is_part: Whether these are a few members out of an archive, with no end marker.

    Raises:
        SourceError: This is no archive, it is damaged or cut off, or has what is not supported.
    """
    attributes: dict[str, str] = {}
    begin = data.at
    while True:
        at = data.at
        block = data.take(_BLOCK)
        if is_part and not block:
            return
        if block == _ZEROS:
            _check_end(data, path)
            return
        header = _header(block, at, path)
        if header.type in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE):
            text = _attribute_bytes(data, header, path, at)
            if header.type == tarfile.GNUTYPE_LONGNAME:
                attributes["path"] = text.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
            elif header.type == tarfile.XHDTYPE:
                attributes.update(_pax(text, path, at))
            elif {"path", "size"} & _pax(text, path, at).keys():
                _fail("one name or size is given to all members (a global PAX header)", path, at)
            if not data.go_to(at + _BLOCK + _padded(header.size)):
                raise _cut(path, data.at)
            continue
        if header.type == tarfile.GNUTYPE_LONGLINK:
            if not data.go_to(at + _BLOCK + _padded(header.size)):
                raise _cut(path, data.at)
            continue
        if header.type == tarfile.GNUTYPE_SPARSE or any("GNU.sparse" in key for key in attributes):
            _fail(
                f"{printable(header.name)!r} is stored as a sparse file",
                path,
                at,
                "make the tar without --sparse",
            )
        name = attributes.get("path", header.name)
        num_bytes = _size(attributes, header, path, at)
        # Only files have data; links and folders may have a size that says nothing.
        stored_bytes = num_bytes if header.isreg() or not _is_known(header) else 0
        kind: Literal["file", "folder", "other"] = "folder" if header.isdir() else "other"
        member = Member(name, "file" if header.isreg() else kind, begin, data.at, stored_bytes)
        yield member
        if not data.go_to(member.end):
            raise _cut(path, data.at)
        attributes, begin = {}, member.end


def _header(block: bytes, at: int, path: str) -> tarfile.TarInfo:
    if not block and at:
        raise SourceError(
            "the tar has no end marker: it is cut off",
            path=path,
            offset=at,
            hint="get it again; if nothing is missing, `truncate -s +1024` adds the marker",
        )
    if len(block) < _BLOCK and at:
        raise _cut(path, at + len(block))
    try:
        header = _plain(block) or tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        if at:
            _fail(f"the header of a member is damaged ({error})", path, at)
        packed = [name for magic, name in PACKED.items() if block.startswith(magic)]
        raise SourceError(
            f"this is packed with {packed[0]}" if packed else f"this is no tar file ({error})",
            path=path,
            offset=0,
            hint="tar files are read plain or packed with gzip" if packed else None,
        ) from None
    if header.size < 0:
        _fail("a member has a size below 0", path, at)
    return header


def _plain(block: bytes) -> tarfile.TarInfo | None:
    """Return the header of an ordinary file with a short name; None for ``tarfile`` to judge.

    Most headers are such, and ``tarfile`` takes four times as long.
    """
    if len(block) < _BLOCK:
        return None
    # A number ends at the first NUL, also where that stands in front.
    check, size = (
        field.partition(b"\0")[0].strip(b" ") for field in (block[148:156], block[124:136])
    )
    if block[156:157] != tarfile.REGTYPE or block[257:262] != b"ustar" or block[345]:
        return None
    if not (check.isdigit() and size.isdigit()) or b"8" in check + size or b"9" in check + size:
        return None
    # The sum is that of the header with blanks in place of the sum.
    if int(check, 8) != sum(block) - sum(block[148:156]) + 8 * 0x20:
        return None
    header = tarfile.TarInfo(block[:100].partition(b"\0")[0].decode("utf-8", "surrogateescape"))
    header.size = int(size, 8)
    return header


def _is_known(header: tarfile.TarInfo) -> bool:
    return header.type in tarfile.SUPPORTED_TYPES


def _attribute_bytes(data: Bytes, header: tarfile.TarInfo, path: str, at: int) -> bytes:
    if header.size > _MOST_NAME_BYTES:
        _fail(f"a name or the attributes of a member take {header.size:,} bytes", path, at)
    text = data.take(header.size)
    if len(text) < header.size:
        raise _cut(path, data.at)
    return text


def _pax(text: bytes, path: str, at: int) -> dict[str, str]:
    """Parse lines of ``<length> <key>=<value>``, each of which has the length that it says."""
    found: dict[str, str] = {}
    begin = 0
    while begin < len(text) and text[begin]:
        length, space, _ = text[begin : begin + 20].partition(b" ")
        end = begin + int(length) if length.isdigit() else 0
        line = text[begin + len(length) + 1 : end]
        key, equals, value = line.partition(b"=")
        if not (space and equals and end <= len(text) and line.endswith(b"\n")):
            _fail("the attributes of a member (PAX) are damaged", path, at)
        found[key.decode("utf-8", "replace")] = value[:-1].decode("utf-8", "surrogateescape")
        begin = end
    return found


def _size(attributes: dict[str, str], header: tarfile.TarInfo, path: str, at: int) -> int:
    size = attributes.get("size")
    if size is None:
        return header.size
    if not (size.isascii() and size.isdigit() and len(size) < 20):
        _fail(f"a member has the size {printable(size)!r}", path, at)
    return int(size)


def _check_end(data: Bytes, path: str) -> None:
    while True:
        at = data.at
        rest = data.take(_WINDOW_BYTES)
        if not rest:
            return
        if rest.strip(b"\0"):
            begin = at + len(rest) - len(rest.lstrip(b"\0"))
            _fail(
                "the tar goes on behind its end marker, as if several were joined",
                path,
                begin,
                "take it apart (`tar -xif`), and make one tar of the files",
            )


def cut_member(name: str, path: str, at: int) -> SourceError:
    """Return the error for an archive that ends inside of a member's bytes."""
    return SourceError(
        f"the tar is cut off: it ends inside of {printable(name)!r}",
        path=path,
        offset=at,
        hint="get it again, or make it again",
    )


def _cut(path: str, at: int) -> SourceError:
    return SourceError(
        "the tar is cut off", path=path, offset=at, hint="get it again, or make it again"
    )


def _fail(message: str, path: str, at: int, hint: str | None = None) -> NoReturn:
    raise SourceError(message, path=path, offset=at, hint=hint or "get it again, or make it again")


# Samples of a tar archive: neighbouring members whose names agree up to the first dot.
#
# The rule is WebDataset's: the key is the path up to the first dot of the last name, the rest is
# the extension, in lower case.

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


KIND: Final = "webdataset"
ENDINGS: Final = (".tar", ".tar.gz", ".tgz")
KEY: Final = "__key__"
LABEL: Final = "cls"

_MAX_OPEN_FILES: Final = 128
_MANY_EXTENSIONS: Final = 64
_STRING: Final = FeatureType("bytes", "string", ())
_TYPES: Final = {
    "cls": FeatureType("int64", "int64", ()),
    "txt": _STRING,
    "json": _STRING,
    **{
        extension.removeprefix("."): FeatureType("bytes", "bytes", (), "image")
        for extension in EXTENSIONS
    },
}
_BYTES: Final = FeatureType("bytes", "bytes", ())


class StreamedSample(NamedTuple):
    """The descriptor of a sample of a stream: the sample itself, and its file."""

    file: int
    sample: Sample


class WebDataset:
    """Samples of tar files.

    Args:
        paths: The files, in order.

    Raises:
        SourceError: One can not be read, is no tar file, or is damaged; or no sample is in them.
    """

    kind = KIND
    stable = True
    vocabularies: Mapping[str, list[str]] = {}

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = list(paths)
        self._absolute = [absolute(path) for path in paths]  # a map may chdir
        top = common_folder(self._absolute)
        self._names = [relative(path, top) for path in self._absolute]
        self._inputs = inputs_for(paths[0])
        self._states = self._stat()
        self.random_access = self.travels = all(map(_is_plain, self._paths))
        self.num_items: int | None = None
        self._offsets = OffsetTable()
        self._open_files = OpenFiles(min(_MAX_OPEN_FILES, max_open_files(None)))
        self._files: list[TarFile] = []
        self._first_samples: list[int] = []
        extensions = self._scan() if self.random_access else self._first_extensions()
        self.plan: Mapping[str, FeatureType] = {
            name: _type_of(name) for name in (KEY, *extensions) if extensions
        }
        self.label: str | None = LABEL if LABEL in self.plan else None
        self.notes: Sequence[str] = self._notes(extensions)

    def _stat(self) -> list[tuple[int, int]]:
        try:
            found = self._inputs.stats(self._absolute)
        except OSError as error:
            raise SourceError(
                f"can not be read: {error.strerror}", path=error.filename or self._paths[0]
            ) from error
        for path, each in zip(self._paths, found, strict=True):
            if not stat.S_ISREG(each.st_mode):
                raise SourceError("this is no file: tar files are not read from pipes", path=path)
        return [(each.st_size, each.st_mtime_ns) for each in found]

    def _scan(self) -> list[str]:
        extensions: dict[str, None] = {}
        num_samples = 0
        for path in self._paths:
            file = TarFile(path)
            self._open_files.open(file)
            file.scan(self._offsets)
            extensions.update(file.extensions)
            self._files.append(file)
            self._first_samples.append(num_samples)
            num_samples += file.num_samples
        if not num_samples:
            raise SourceError(
                "no samples are in the tar",
                path=self._paths[0],
                hint="samples are files such as 0001.jpg and 0001.cls; hidden ones are left out",
            )
        self.num_items = num_samples
        return list(extensions)

    def _first_extensions(self) -> list[str]:
        """Return those of the first sample: of a stream no more is known before it is read."""
        with closing(self._read(0)) as samples:
            first = next(samples, None)
        return [] if first is None else [name for name, _ in first.sample.members]

    def _notes(self, extensions: Sequence[str]) -> list[str]:
        notes = []
        skipped: Counter[str] = Counter()
        for file in self._files:
            skipped.update(file.skipped)
        del skipped["folders"]
        if skipped:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in skipped.most_common())
            notes.append(f"members that belong to no sample were left out: {reasons}")
        if len(extensions) > _MANY_EXTENSIONS:
            notes.append(
                f"there are {len(extensions):,} different extensions, as {extensions[-1]!r}: names "
                "are cut at their first dot, so keys can not have dots"
            )
        return notes

    def items(self) -> Iterator[int | StreamedSample]:
        """Yield the numbers of the samples; of streams the samples, as they are read.

        Raises:
            SourceError: A stream is damaged, or cut off.
            SourceChanged: A stream is not what it was at first.
        """
        if self.random_access:
            assert self.num_items is not None
            return iter(range(self.num_items))
        return (item for number in range(len(self._paths)) for item in self._read(number))

    def _read(self, number: int) -> Generator[StreamedSample, None, None]:
        path = self._paths[number]
        try:
            with ExitStack() as stack:
                read = _opened(self._absolute[number], stack)
                for sample in samples_in(StreamedBytes(read), path):
                    yield StreamedSample(number, sample)
            found = self._inputs.stat(self._absolute[number])
        except CorruptFile as error:
            raise SourceError(
                f"can not be unpacked: {error.message}", path=path, hint="get it again"
            ) from None
        except InputChanged:
            raise file_changed(path) from None
        except OSError as error:
            raise SourceError(f"can not be read: {error.strerror}", path=path) from error
        if (found.st_size, found.st_mtime_ns) != self._states[number]:
            raise file_changed(path)

    def item(self, item_index: int) -> int:
        """Return a sample's number."""
        return item_index

    def _place(self, item: int) -> tuple[int, int, int]:
        """Return the file of a sample, and where it begins and ends there."""
        number = bisect_right(self._first_samples, item) - 1
        # A file has one offset more than samples, hence "+ number".
        begin, end = self._offsets.span(item + number, item + number + 1)
        self._open_files.open(self._files[number])
        return number, begin, end

    def key(self, item: int | StreamedSample) -> str:
        """Return the sample's key, behind the name of the file where there are several."""
        if isinstance(item, StreamedSample):
            number, key = item.file, item.sample.key
        else:
            number, begin, _ = self._place(item)
            key = self._files[number].key(begin)
        return key if len(self._paths) == 1 else f"{self._names[number]}/{key}"

    def load(self, item: int | StreamedSample) -> dict[str, Any]:
        """Return a sample's features.

        Raises:
            SourceError: It has two members of one extension, or text that is not what it should be.
            SourceChanged: The file is not what it was when it was read first.
            RecordTooLarge: No record can hold it.
        """
        if isinstance(item, StreamedSample):
            path, sample = self._paths[item.file], item.sample
            check_size(sample.num_bytes, path)
        else:
            number, begin, end = self._place(item)
            path, sample = self._paths[number], self._files[number].sample(begin, end)
        features: dict[str, Any] = {KEY: sample.key}
        for extension, data in sample.members:
            if extension in features:
                raise SourceError(
                    f"two members of the sample {sample.key!r} are called .{extension}",
                    path=path,
                    hint="upper and lower case are the same; make the tar again",
                )
            features[extension] = _value(extension, data, sample.key, path)
        return features

    def digest(self) -> dict[str, Any]:
        """Return what identifies each file.

        Of a plain one: its size, and the CRC of all names and sizes of members. Of a stream: its
        size and last 8 bytes, with the checksum of what is packed.
        """
        if self.random_access:
            return {"files": [[f.file_bytes, f"{f.crc32c:08x}"] for f in self._files]}
        sizes = [size for size, _ in self._states]
        return {"files": [[size, self._tail(n)] for n, size in enumerate(sizes)]}

    def _tail(self, number: int) -> str:
        try:
            with self._inputs.open(self._absolute[number]) as file:
                return file.read_at(max(0, file.stat().st_size - 8), 8).hex()
        except OSError as error:
            raise SourceError(
                f"can not be read: {error.strerror}", path=self._paths[number]
            ) from error

    def fingerprint(self) -> dict[str, Any]:
        """Return the same with the times of the files."""
        return {**self.digest(), "times": [time_ns for _, time_ns in self._stat()]}


def is_tar_name(path: str) -> bool:
    """Tell whether a file is called as tar files are."""
    return path.lower().endswith(ENDINGS)


def _type_of(name: str) -> FeatureType:
    return _STRING if name == KEY else _TYPES.get(name.rpartition(".")[2], _BYTES)


def _value(extension: str, data: bytes, key: str, path: str) -> int | str | bytes:
    """Return a member as the feature that its extension says."""
    planned = _type_of(extension)
    if planned.kind == "int64":
        text = data.strip()
        if not text.removeprefix(b"-").isdigit():
            raise SourceError(
                f"{key}.{extension} is {bytes(text[:20])!r}, and no integer",
                path=path,
                hint="an extension that ends in cls is for a class's number; name classes in .txt",
            )
        try:
            return int(text)
        except ValueError:  # Python refuses thousands of digits
            raise SourceError(f"{key}.{extension} is no number of 64 bits", path=path) from None
    if planned == _STRING:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{key}.{extension} is not UTF-8: byte {data[error.start]:#04x} at {error.start}",
                path=path,
                hint="text has to be UTF-8; any other extension is for bytes",
            ) from None
    return data


def _is_plain(path: str) -> bool:
    """Tell whether a file can be read by position."""
    try:
        with open_stream(path) as stream:
            return stream.compression != "gzip"
    except OSError as error:
        raise SourceError(f"can not be read: {error.strerror}", path=path) from error


def _opened(path: str, stack: ExitStack) -> Callable[[int], bytes]:
    """Return what reads the unpacked file."""
    stream = stack.enter_context(OpenStream(path, inputs_for(path).open_raw(path)))
    # A tar begins with a name, and such as "x^2" begins like a zlib stream.
    if stream.compression != "zlib":
        return stream.read
    return stack.enter_context(closing(inputs_for(path).open_raw(path))).read
