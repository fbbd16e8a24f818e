"""``webdataset``: tar files of samples; a sample is a record.

Consecutive members with the same name up to the first dot are a sample, which is WebDataset's rule:
the key is the path up to the first dot of the last component, the rest is the extension, in lower
case. The features are ``__key__`` and one for each extension. The last part of an extension sets
the type: ``cls`` is an integer as text and becomes int64; ``txt`` and ``json`` are strings; names
of image files are images, and all else is bytes. Only ``cls`` is decoded.

If the members of a sample are not consecutive, WebDataset would split it, and separate an image
from its label. Here this is an error.

Uncompressed files get a first pass over the headers, which gives random access. If one file is
compressed, all are streams, read once from front to back.
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

# -- tar archives ----------------------------------------------------------------------------------
#
# `tarfile` takes a damaged or truncated header for the end of the archive, and silently ignores the
# rest. Here an archive ends only with its end marker (a block of zeros). `tarfile` parses single
# headers: ustar, GNU (long names) and PAX (`path` and `size`).

_BLOCK: Final = tarfile.BLOCKSIZE
_ZEROS: Final = bytes(_BLOCK)
_WINDOW_BYTES: Final = 1 << 14  # per read when scanning headers
_STREAM_BYTES: Final = 1 << 20
_HINT: Final = "download it again, or write it again"
_MAX_NAME_BYTES: Final = 1 << 20  # of a long name or the attributes of a member
PACKED: Final = {b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
"""The first bytes of files in compression formats that are not supported."""


class Member(NamedTuple):
    """A member of an archive."""

    name: str
    kind: Literal["file", "folder", "other"]
    begin: int  # of its first header
    data_begin: int
    num_bytes: int

    @property
    def end(self) -> int:
        """The offset of the next member: data is padded to whole blocks."""
        return self.data_begin + _padded(self.num_bytes)


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _BLOCK) * _BLOCK


class Bytes(Protocol):
    """Bytes that are read from front to back."""

    at: int

    def take(self, num_bytes: int) -> bytes:
        """Return the next bytes; fewer at the end."""

    def go_to(self, offset: int) -> bool:
        """Skip to an offset; return False if the bytes end before it."""


class PositionedBytes:
    """The bytes of a file that is read by position.

    Args:
        read: Returns the bytes [begin, end).
        end: The end of the bytes.
        at: Their beginning.
    """

    def __init__(self, read: Callable[[int, int], bytes], end: int, at: int = 0) -> None:
        self._read = read
        self._end = end
        self.at = at
        self._window, self._window_begin = b"", at

    def take(self, num_bytes: int) -> bytes:
        """Return the next bytes; fewer at the end."""
        end = min(self.at + num_bytes, self._end)
        if not self._window_begin <= self.at <= end <= self._window_begin + len(self._window):
            window_end = min(max(end, self.at + _WINDOW_BYTES), self._end)
            self._window, self._window_begin = self._read(self.at, window_end), self.at
        begin = self.at - self._window_begin
        data = self._window[begin : end - self._window_begin]
        self.at += len(data)
        return data

    def go_to(self, offset: int) -> bool:
        """Skip to an offset; return False if the bytes end before it."""
        self.at = min(offset, self._end)
        return offset <= self._end


class StreamedBytes:
    """The bytes of a stream.

    Args:
        read: Returns up to a number of bytes; none at the end.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._ahead = b""
        self.at = 0

    def take(self, num_bytes: int) -> bytes:
        """Return the next bytes; fewer at the end."""
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
        """Skip to an offset; return False if the bytes end before it."""
        while self.at < offset:
            if not self.take(min(offset - self.at, _STREAM_BYTES)):
                return False
        return True


def walk(data: Bytes, path: str, *, is_part: bool = False) -> Iterator[Member]:
    """Yield every member; the caller may take its bytes before the next one.

    Args:
        data: The archive.
        path: Its name, for error messages.
        is_part: Whether the data is some members of an archive, without an end marker.

    Raises:
        SourceError: It is not an archive, is damaged or truncated, or has unsupported members.
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
                _fail("a global PAX header sets a name or size for all members", path, at)
            if not data.go_to(at + _BLOCK + _padded(header.size)):
                raise _truncated(path, data.at)
            continue
        if header.type == tarfile.GNUTYPE_LONGLINK:
            if not data.go_to(at + _BLOCK + _padded(header.size)):
                raise _truncated(path, data.at)
            continue
        if header.type == tarfile.GNUTYPE_SPARSE or any("GNU.sparse" in key for key in attributes):
            _fail(
                f"{printable(header.name)!r} is stored as a sparse file",
                path,
                at,
                "write the tar without --sparse",
            )
        name = attributes.get("path", header.name)
        num_bytes = _size(attributes, header, path, at)
        # Only files have data; the size of links and folders may be arbitrary.
        stored_bytes = num_bytes if header.isreg() or not _is_known(header) else 0
        kind: Literal["file", "folder", "other"] = "folder" if header.isdir() else "other"
        member = Member(name, "file" if header.isreg() else kind, begin, data.at, stored_bytes)
        yield member
        if not data.go_to(member.end):
            raise _truncated(path, data.at)
        attributes, begin = {}, member.end


def _header(block: bytes, at: int, path: str) -> tarfile.TarInfo:
    if not block and at:
        raise SourceError(
            "the tar is truncated: it has no end marker",
            path=path,
            offset=at,
            hint="download it again; if no member is missing, `truncate -s +1024` adds the marker",
        )
    if len(block) < _BLOCK and at:
        raise _truncated(path, at + len(block))
    try:
        header = _parse_plain(block) or tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        if at:
            _fail(f"the header of a member is damaged ({error})", path, at)
        packed = [name for magic, name in PACKED.items() if block.startswith(magic)]
        raise SourceError(
            f"compressed with {packed[0]}, which is not supported"
            if packed
            else f"this is not a tar file ({error})",
            path=path,
            offset=0,
            hint="decompress the file, or compress it with gzip" if packed else None,
        ) from None
    if header.size < 0:
        _fail("a member has a negative size", path, at)
    return header


def _parse_plain(block: bytes) -> tarfile.TarInfo | None:
    """Return the header of a regular file with a short name; None to leave it to ``tarfile``.

    Most headers are such, and ``tarfile`` takes four times as long.
    """
    if len(block) < _BLOCK:
        return None
    # A number ends at its first NUL, even at the beginning.
    check, size = (
        field.partition(b"\0")[0].strip(b" ") for field in (block[148:156], block[124:136])
    )
    if block[156:157] != tarfile.REGTYPE or block[257:262] != b"ustar" or block[345]:
        return None
    if not (check.isdigit() and size.isdigit()) or b"8" in check + size or b"9" in check + size:
        return None
    # The checksum is that of the header with spaces in place of the checksum.
    if int(check, 8) != sum(block) - sum(block[148:156]) + 8 * 0x20:
        return None
    header = tarfile.TarInfo(block[:100].partition(b"\0")[0].decode("utf-8", "surrogateescape"))
    header.size = int(size, 8)
    return header


def _is_known(header: tarfile.TarInfo) -> bool:
    return header.type in tarfile.SUPPORTED_TYPES


def _attribute_bytes(data: Bytes, header: tarfile.TarInfo, path: str, at: int) -> bytes:
    if header.size > _MAX_NAME_BYTES:
        _fail(f"a name or the attributes of a member have {header.size:,} bytes", path, at)
    text = data.take(header.size)
    if len(text) < header.size:
        raise _truncated(path, data.at)
    return text


def _pax(text: bytes, path: str, at: int) -> dict[str, str]:
    """Return the attributes of a PAX header: lines of ``<length> <key>=<value>``."""
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
                "the tar has more after its end marker, as if several were concatenated",
                path,
                begin,
                "extract it (`tar -xif`), and write one tar of the files",
            )


def truncated_member(name: str, path: str, at: int) -> SourceError:
    """Return the error for an archive that ends in the data of a member."""
    return SourceError(
        f"the tar is truncated: it ends inside {printable(name)!r}",
        path=path,
        offset=at,
        hint=_HINT,
    )


def _truncated(path: str, at: int) -> SourceError:
    return SourceError("the tar is truncated", path=path, offset=at, hint=_HINT)


def _fail(message: str, path: str, at: int, hint: str | None = None) -> NoReturn:
    raise SourceError(message, path=path, offset=at, hint=hint or _HINT)


# -- samples ---------------------------------------------------------------------------------------


_BATCH: Final = 1 << 16
_META: Final = re.compile(r"__[^/]*__($|/)")  # reserved names of WebDataset


class Sample(NamedTuple):
    """A sample: extensions and bytes in the order of the archive."""

    key: str
    members: tuple[tuple[str, bytes], ...]
    num_bytes: int  # of all members; above the limit of a record, `members` is incomplete


class Grouping:
    """Groups members into samples.

    Attributes:
        skipped: Counts of members that were left out, by reason.
        key: The key of the current sample.
        extension: The extension of the last member.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: set[int] = set()  # hashes, as the keys of a large archive take much memory
        self.skipped: Counter[str] = Counter()
        self.key: str | None = None
        self.extension = ""

    def begins(self, member: Member) -> bool | None:
        """Return whether the member begins a sample; None if it is left out.

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
                hint="rename it and write the tar again",
            ) from None
        if hash(key) in self._seen:
            raise SourceError(
                f"the key {key!r} is repeated after other samples, in {member.name!r}",
                path=self._path,
                offset=member.begin,
                hint="put the members of a sample together, as with tar --sort=name",
            )
        self._seen.add(hash(key))
        self.key = key
        return True


def _parse(member: Member) -> tuple[str, str, str]:
    """Return the reason for leaving a member out, or its key and extension."""
    if member.kind != "file":
        return "folders" if member.kind == "folder" else "links and devices", "", ""
    folder, slash, name = member.name.rpartition("/")
    base, _, extension = name.partition(".")
    if _META.match(member.name):
        return "reserved members of WebDataset (__...__)", "", ""
    if name.startswith("."):
        return "hidden files", "", ""
    if not extension:
        return "files without an extension", "", ""
    return "", folder + slash + base, extension.lower()


def samples_in(data: Bytes, path: str, *, is_part: bool = False) -> Iterator[Sample]:
    """Yield every sample with its bytes.

    Raises:
        SourceError: The archive is damaged, or a key is repeated.
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
            raise truncated_member(member.name, path, data.at)
        members.append((grouping.extension, content))
    if key is not None:
        yield Sample(key, tuple(members), num_bytes)


class TarFile(InputFile):
    """An uncompressed tar file, read by position: a sample is one range of bytes.

    Attributes:
        num_samples: The number of samples, after a scan.
        file_bytes: Its size.
        crc32c: The CRC-32C of the names and sizes of all members of samples.
        extensions: The extensions, in order of their first member.
        skipped: Counts of members that were left out, by reason.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, None)
        self.num_samples = 0
        self.file_bytes = 0
        self.crc32c = 0
        self.extensions: dict[str, None] = {}
        self.skipped: Counter[str] = Counter()

    def scan(self, offsets: OffsetTable) -> None:
        """Read all headers, and add the offset of every sample and of the end of the last.

        Raises:
            SourceError: The archive is damaged or truncated, or a key is repeated.
        """
        self.file_bytes = self.num_bytes
        grouping = Grouping(self.path)
        starts: list[int] = []
        lines: list[str] = []
        end = 0
        for member in walk(PositionedBytes(self.read, self.file_bytes), self.path):
            if member.data_begin + member.num_bytes > self.file_bytes:
                raise truncated_member(member.name, self.path, self.file_bytes)
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
        """Return the sample in [begin, end).

        Raises:
            SourceError: It cannot be read.
            SourceChanged: The file has changed since it was scanned.
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
    """Raise for a sample that is too large for a record.

    Raises:
        RecordTooLarge: It has 2 GiB or more.
    """
    if num_bytes > MAX_PAYLOAD_BYTES:
        raise RecordTooLarge(
            f"the sample has {num_bytes:,} bytes; a record has less than 2 GiB",
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
    """The descriptor of a sample of a stream: the sample, and the number of its file."""

    file: int
    sample: Sample


class WebDataset:
    """Samples of tar files.

    Args:
        paths: The files, in order.

    Raises:
        SourceError: A file cannot be read, is not a tar file, or is damaged; or has no samples.
    """

    kind = KIND
    resumable = True
    vocabularies: Mapping[str, list[str]] = {}

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = list(paths)
        self._absolute = [absolute(path) for path in paths]  # a map may chdir
        top = common_folder(self._absolute)
        self._names = [relative(path, top) for path in self._absolute]
        self._inputs = inputs_for(paths[0])
        self._states = self._stat()
        self.random_access = self.sendable = all(map(_is_plain, self._paths))
        self.num_items: int | None = None
        self._offsets = OffsetTable()
        self._open_files = OpenFiles(min(_MAX_OPEN_FILES, max_open_files(None)))
        self._files: list[TarFile] = []
        self._first_samples: list[int] = []
        extensions = self._scan() if self.random_access else self._read_first_extensions()
        self.plan: Mapping[str, FeatureType] = {
            name: _type_of(name) for name in (KEY, *extensions) if extensions
        }
        self.label: str | None = LABEL if LABEL in self.plan else None
        self.notes: Sequence[str] = self._make_notes(extensions)

    def _stat(self) -> list[tuple[int, int]]:
        try:
            found = self._inputs.stats(self._absolute)
        except OSError as error:
            raise SourceError(
                f"can not be read: {error.strerror}", path=error.filename or self._paths[0]
            ) from error
        for path, each in zip(self._paths, found, strict=True):
            if not stat.S_ISREG(each.st_mode):
                raise SourceError("not a regular file: tar files cannot be pipes", path=path)
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
                "the tar has no samples",
                path=self._paths[0],
                hint="samples are files such as 0001.jpg and 0001.cls; hidden files are left out",
            )
        self.num_items = num_samples
        return list(extensions)

    def _read_first_extensions(self) -> list[str]:
        """Return the extensions of the first sample; those of later ones are unknown in streams."""
        with closing(self._read(0)) as samples:
            first = next(samples, None)
        return [] if first is None else [name for name, _ in first.sample.members]

    def _make_notes(self, extensions: Sequence[str]) -> list[str]:
        notes = []
        skipped: Counter[str] = Counter()
        for file in self._files:
            skipped.update(file.skipped)
        del skipped["folders"]
        if skipped:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in skipped.most_common())
            notes.append(f"members that are not part of a sample were left out: {reasons}")
        if len(extensions) > _MANY_EXTENSIONS:
            notes.append(
                f"there are {len(extensions):,} different extensions, such as {extensions[-1]!r}: "
                "names are split at their first dot, so keys can not have dots"
            )
        return notes

    def items(self) -> Iterator[int | StreamedSample]:
        """Yield sample numbers; of streams the samples, as they are read.

        Raises:
            SourceError: A stream is damaged or truncated.
            SourceChanged: A file has changed since the source was opened.
        """
        if self.random_access:
            assert self.num_items is not None
            return iter(range(self.num_items))
        return (item for number in range(len(self._paths)) for item in self._read(number))

    def _read(self, number: int) -> Generator[StreamedSample, None, None]:
        path = self._paths[number]
        try:
            with ExitStack() as stack:
                read = _open_content(self._absolute[number], stack)
                for sample in samples_in(StreamedBytes(read), path):
                    yield StreamedSample(number, sample)
            found = self._inputs.stat(self._absolute[number])
        except CorruptFile as error:
            raise SourceError(
                f"can not be decompressed: {error.message}", path=path, hint="download it again"
            ) from None
        except InputChanged:
            raise file_changed(path) from None
        except OSError as error:
            raise SourceError(f"can not be read: {error.strerror}", path=path) from error
        if (found.st_size, found.st_mtime_ns) != self._states[number]:
            raise file_changed(path)

    def item(self, item_index: int) -> int:
        """Return a sample's number, which is the item."""
        return item_index

    def _place(self, item: int) -> tuple[int, int, int]:
        """Return the file number of a sample, and its first and last offset in the file."""
        number = bisect_right(self._first_samples, item) - 1
        # The offsets of a file have one more entry than samples, hence "+ number".
        begin, end = self._offsets.span(item + number, item + number + 1)
        self._open_files.open(self._files[number])
        return number, begin, end

    def key(self, item: int | StreamedSample) -> str:
        """Return the sample's key, after the file name if there are several files."""
        if isinstance(item, StreamedSample):
            number, key = item.file, item.sample.key
        else:
            number, begin, _ = self._place(item)
            key = self._files[number].key(begin)
        return key if len(self._paths) == 1 else f"{self._names[number]}/{key}"

    def load(self, item: int | StreamedSample) -> dict[str, Any]:
        """Return a sample's features.

        Raises:
            SourceError: It has two members of one extension, or a member with invalid text.
            SourceChanged: The file has changed since it was scanned.
            RecordTooLarge: It is too large for a record.
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
                    f"two members of the sample {sample.key!r} have the extension .{extension}",
                    path=path,
                    hint="extensions ignore case; rename one of them and write the tar again",
                )
            features[extension] = _value(extension, data, sample.key, path)
        return features

    def digest(self) -> dict[str, Any]:
        """Return what identifies each file.

        An uncompressed file: its size, and the CRC of all names and sizes of members. A stream: its
        size and last 8 bytes, with the checksum of its content.
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
        """Return the digest with the modification times of the files."""
        return {**self.digest(), "times": [time_ns for _, time_ns in self._stat()]}


def is_tar_name(path: str) -> bool:
    """Return whether a file has an ending of tar files."""
    return path.lower().endswith(ENDINGS)


def _type_of(name: str) -> FeatureType:
    return _STRING if name == KEY else _TYPES.get(name.rpartition(".")[2], _BYTES)


def _value(extension: str, data: bytes, key: str, path: str) -> int | str | bytes:
    """Return a member's value, by its extension."""
    planned = _type_of(extension)
    if planned.kind == "int64":
        text = data.strip()
        if not text.removeprefix(b"-").isdigit():
            raise SourceError(
                f"{key}.{extension} is {bytes(text[:20])!r}, not an integer",
                path=path,
                hint="an extension that ends in cls is for a class number; store names in .txt",
            )
        try:
            return int(text)
        except ValueError:  # Python does not parse thousands of digits
            raise SourceError(f"{key}.{extension} is beyond 64 bits", path=path) from None
    if planned == _STRING:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{key}.{extension} is not UTF-8: byte {data[error.start]:#04x} at {error.start}",
                path=path,
                hint="text must be UTF-8; use another extension for bytes",
            ) from None
    return data


def _is_plain(path: str) -> bool:
    """Return whether a file is uncompressed, and so can be read by position."""
    try:
        with open_stream(path) as stream:
            return stream.compression != "gzip"
    except OSError as error:
        raise SourceError(f"can not be read: {error.strerror}", path=path) from error


def _open_content(path: str, stack: ExitStack) -> Callable[[int], bytes]:
    """Return a function that reads a file's decompressed content."""
    stream = stack.enter_context(OpenStream(path, inputs_for(path).open_raw(path)))
    # A tar begins with a name, and "x^2" begins like a zlib stream.
    if stream.compression != "zlib":
        return stream.read
    return stack.enter_context(closing(inputs_for(path).open_raw(path))).read
