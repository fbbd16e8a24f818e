"""Members of a tar archive, one header after the other.

``tarfile`` takes a header that is broken, or cut off, for the end of the archive, and what follows
is lost without a word. Here an archive ends at its end marker (a block of zeros) and nowhere else.
Single headers are parsed by ``tarfile``: ustar, GNU (long names) and PAX (``path`` and ``size``).
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple, NoReturn, Protocol

from shardwriter.errors import SourceError
from shardwriter.storage.inputs import printable

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
