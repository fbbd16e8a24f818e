"""``numpy``: arrays in ``.npy`` and ``.npz`` files; a row of the first axis is an item.

A ``.npz`` file has a feature for each array, a folder of ``.npy`` files one for each file, and an
array of records one for each field; all arrays have the same number of rows. Types come from the
arrays, so they are known before the first row is read. Rows are read by position, never the whole
array; compressed and Fortran-order arrays are first copied into a temporary file. Nothing is
unpickled.

:func:`read_indices` reads the file of ``--indices``.
"""

from __future__ import annotations

import ast
import mmap
import os
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from tokenize import TokenError
from typing import IO, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import ItemIndices, item_indices
from shardwriter.errors import OptionError, SourceError
from shardwriter.formats import Column, extend_crc32c
from shardwriter.schema import FeatureType, float_dtype
from shardwriter.sources.arrow import python_value
from shardwriter.sources.positions import InputFile, OpenFiles, file_changed
from shardwriter.storage import Scratch, inputs_for

MAGIC: Final = b"\x93NUMPY"
ZIP_MAGIC: Final = (b"PK\x03\x04", b"PK\x05\x06")

# Errors of numpy and zipfile for damaged files.
BROKEN: Final = (
    ValueError,
    TypeError,
    LookupError,
    SyntaxError,
    EOFError,
    OSError,
    ArithmeticError,
    MemoryError,
    RuntimeError,
    TokenError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
_COPY_BYTES: Final = 1 << 20
_TRANSPOSE_BYTES: Final = 64 << 20
_TAIL_BYTES: Final = 1 << 16
_ZIP_HEAD: Final = struct.Struct("<4s22xHH")  # signature, sizes of the name and of the extra field
_IS_ENCRYPTED: Final = 1  # a bit of a member's flags
_MAX_GAP_BYTES: Final = 1 << 14  # between rows that are read together


class Header(NamedTuple):
    """The header of a ``.npy`` file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_fortran: bool


class Rows(NamedTuple):
    """An array whose rows are read by position."""

    name: str  # of its file or member, without ending
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int  # in the file, or in the copy
    copy: Scratch | None

    @property
    def row_bytes(self) -> int:
        """The size of a row."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize


class NumpyFile(InputFile):
    """One ``.npy`` or ``.npz`` file.

    Args:
        path: The file.

    Attributes:
        size_bytes: Its size.
        crc32c: The CRC-32C of its first and last 64 KiB: headers, and the directory of a zip file.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, None)
        self.size_bytes = 0
        self.crc32c = 0

    def scan(self, name: str, copy: Scratch) -> list[Rows]:
        """Return the arrays of the open file.

        Args:
            name: The name for the array of a ``.npy`` file.
            copy: Receives arrays that cannot be read by position.

        Raises:
            SourceError: The file is damaged or of another format, or an array has no rows that can
                be features.
        """
        self.size_bytes = self.num_bytes
        head = self.read(0, min(_TAIL_BYTES, self.size_bytes))
        tail = self.read(max(len(head), self.size_bytes - _TAIL_BYTES), self.size_bytes)
        self.crc32c = extend_crc32c(extend_crc32c(0, head), tail)
        file = self.start()
        try:
            if head.startswith(MAGIC):
                return [self._array(name, file, 0, self.size_bytes, copy)]
            if head.startswith(ZIP_MAGIC):
                with zipfile.ZipFile(file) as archive:
                    return self._members(archive, copy)
        except BROKEN as error:
            reason = str(error).partition("\n")[0]
            raise SourceError(
                f"not a complete NumPy file: {reason}", path=self.path, hint="write it again"
            ) from error
        raise SourceError(
            "this is not a NumPy file" + ("" if head else ": it is empty"),
            path=self.path,
            hint="write arrays with np.save or np.savez",
        )

    def _members(self, archive: zipfile.ZipFile, copy: Scratch) -> list[Rows]:
        arrays = []
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name == member.filename or member.flag_bits & _IS_ENCRYPTED:
                what = "is not an array" if name == member.filename else "is encrypted"
                raise SourceError(
                    f"the member {member.filename!r} of this zip file {what}",
                    path=self.path,
                    hint="write the file with np.savez, which adds only arrays",
                )
            with archive.open(member) as stream:
                if member.compress_type == zipfile.ZIP_STORED:
                    signature, name_bytes, extra_bytes = _ZIP_HEAD.unpack(
                        self.read(member.header_offset, member.header_offset + _ZIP_HEAD.size)
                    )
                    assert signature == ZIP_MAGIC[0]
                    begin = member.header_offset + _ZIP_HEAD.size + name_bytes + extra_bytes
                    arrays.append(self._array(name, stream, begin, member.file_size, copy))
                else:
                    arrays.append(self._array(name, stream, None, member.file_size, copy))
        if not arrays:
            raise SourceError("this file has no arrays", path=self.path)
        return arrays

    def _array(
        self, name: str, stream: IO[bytes], begin: int | None, num_bytes: int, copy: Scratch
    ) -> Rows:
        """Read a header, and copy the data if it cannot be read by position.

        Args:
            name: The name of the array.
            stream: A stream that begins with the header.
            begin: The offset of the header in the file; None if the data is compressed.
            num_bytes: The bytes from there to the end.
            copy: Receives the copy.
        """
        header, head_bytes = _read_header(stream)
        _check_header(name, header)
        self._check(name, header)
        data_bytes = int(np.prod(header.shape, dtype=object)) * header.dtype.itemsize
        if num_bytes - head_bytes < data_bytes:
            raise ValueError(
                f"{name!r} needs {data_bytes:,} bytes, but has {num_bytes - head_bytes:,}"
            )
        if begin is not None and not (header.is_fortran and len(header.shape) > 1):
            return Rows(name, header.dtype, header.shape, begin + head_bytes, None)
        copied = copy.num_bytes
        if header.is_fortran and len(header.shape) > 1:
            _copy_transposed(stream, header, data_bytes, copy)
        else:
            _copy(stream, data_bytes, copy)
        while stream.read(_COPY_BYTES):
            pass  # the end of a member checks its checksum
        return Rows(name, header.dtype, header.shape, copied, copy)

    def _check(self, name: str, header: Header) -> None:
        if header.dtype.hasobject:
            raise SourceError(
                f"{name!r} has Python objects, which are not unpickled for safety",
                path=self.path,
                hint="save numbers or text: np.save(path, np.array(values.tolist()))",
            )
        if not header.shape:
            raise SourceError(
                f"{name!r} is a single value (a 0-d array) without rows",
                path=self.path,
                hint="remove it, or save an array with a value for each row",
            )

    def rows(self, array: Rows, places: Sequence[int]) -> NDArray[Any]:
        """Return rows of one of the arrays, ``[len(places), ...]``, in any order.

        Raises:
            SourceError: They cannot be read.
        """
        wanted = np.array(places, np.int64)
        shape = (len(wanted), *array.shape[1:])
        size = array.row_bytes
        if not len(wanted) or not size:
            return np.zeros(shape, array.dtype)  # numpy changes text of length 0 to length 1
        order = np.argsort(wanted, kind="stable")
        ascending = wanted[order]
        gap = max(1, _MAX_GAP_BYTES // size)
        found = np.empty((len(wanted), size), np.uint8)
        for part in np.split(np.arange(len(wanted)), np.flatnonzero(np.diff(ascending) > gap) + 1):
            first, last = int(ascending[part[0]]), int(ascending[part[-1]])
            data = self._data(array, array.begin + first * size, (last + 1 - first) * size)
            found[order[part]] = data.reshape(-1, size)[ascending[part] - first]
        return found.reshape(-1).view(array.dtype).reshape(shape)

    def _data(self, array: Rows, begin: int, num_bytes: int) -> NDArray[np.uint8]:
        if array.copy is not None:
            data = array.copy.read(begin, num_bytes)
        else:
            data = self.read(begin, begin + num_bytes)
        if len(data) != num_bytes:
            raise file_changed(self.path)
        return np.frombuffer(data, np.uint8)


def _copy(stream: IO[bytes], num_bytes: int, copy: Scratch) -> None:
    while num_bytes:
        data = _read_exactly(stream, min(num_bytes, _COPY_BYTES))
        copy.append(data)
        num_bytes -= len(data)


def _copy_transposed(stream: IO[bytes], header: Header, num_bytes: int, copy: Scratch) -> None:
    """Append the rows of a Fortran-order array; only some are in memory at a time."""
    if not num_bytes:
        return
    columns = Scratch()
    _copy(stream, num_bytes, columns)
    row_bytes = num_bytes // header.shape[0]
    with mmap.mmap(columns.fileno(), num_bytes, access=mmap.ACCESS_READ) as mapped:
        rows = np.frombuffer(mapped, header.dtype).reshape(header.shape, order="F")
        step = max(1, _TRANSPOSE_BYTES // row_bytes)
        for first in range(0, header.shape[0], step):
            copy.append(rows[first : first + step].tobytes())
        del rows  # a map with views cannot be closed
    columns.close()


def _read_header(stream: IO[bytes]) -> tuple[Header, int]:
    """Return a header and its size."""
    version = np.lib.format.read_magic(stream)
    if version == (3, 0):  # field names in UTF-8; numpy has no public function for it
        (size,) = struct.unpack("<I", _read_exactly(stream, 4))
        fields = ast.literal_eval(_read_exactly(stream, size).decode("utf-8"))
        dtype = np.lib.format.descr_to_dtype(fields["descr"])
        return Header(dtype, fields["shape"], fields["fortran_order"]), 12 + size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # headers of Python 2
        counted = _Counted(stream)
        if version == (1, 0):
            shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(counted)
        elif version == (2, 0):
            shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(counted)
        else:
            raise ValueError(f"unknown format version {version[0]}.{version[1]}")
    return Header(dtype, shape, is_fortran), 8 + counted.num_bytes


def _check_header(name: str, header: Header) -> None:
    """Raise for an invalid header; numpy checks most of it, but not in every version.

    Raises:
        ValueError: The shape, the order or the dtype is invalid.
    """
    shape = header.shape
    if type(shape) is not tuple or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{name!r} has the shape {shape!r:.80}")
    if type(header.is_fortran) is not bool:
        raise ValueError(f"{name!r} has the fortran_order {header.is_fortran!r:.80}")
    np.empty((0, *shape[1:]), header.dtype)  # raises for too many or too large dimensions


class _Counted:
    """A stream that counts the bytes read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.num_bytes = 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self.num_bytes += len(data)
        return data


def _read_exactly(stream: IO[bytes], num_bytes: int) -> bytes:
    data = stream.read(num_bytes)
    if len(data) != num_bytes:
        raise EOFError("the file ends too early")
    return data


def read_indices(path: str, *, allow_duplicates: bool = False) -> ItemIndices:
    """Return the indices in a file, which is ``.npy``, or text with one number per line.

    Args:
        path: The file, or its URL.
        allow_duplicates: Whether indices may be repeated.

    Raises:
        OptionError: It cannot be read, or has other content.
    """
    try:
        data = inputs_for(path).read(path)[1]
    except OSError as error:
        raise OptionError(f"--indices: can not be read: {error.strerror}", path=path) from error
    try:
        if data.startswith(b"\x93NUMPY"):
            return item_indices(_array(data), allow_duplicates=allow_duplicates)
        return item_indices(_numbers(data), allow_duplicates=allow_duplicates)
    except OptionError as error:
        error.path = path
        raise


def _array(data: bytes) -> np.ndarray:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # headers of Python 2
            array: np.ndarray = np.load(BytesIO(data), allow_pickle=False)
    except (*BROKEN, MemoryError) as error:
        raise OptionError(f"--indices: not an array of integers: {error}") from None
    return array


def _numbers(data: bytes) -> list[int]:
    lines = data.splitlines()
    try:
        return [int(line) for line in lines if line and not line.isspace()]
    except ValueError:
        for number, line in enumerate(lines, 1):
            if line and not line.isspace() and not _is_number(line):
                text = line[:40].decode("utf-8", "replace")
                raise OptionError(
                    f"--indices: {text!r} is not an integer",
                    line=number,
                    hint="give an .npy file, or text with one number per line",
                ) from None
        raise


def _is_number(line: bytes) -> bool:
    try:
        int(line)
    except ValueError:
        return False
    return True


KIND: Final = "numpy"
ENDINGS: Final = (".npy", ".npz")

_BLOCK_ROWS: Final = 1024
_BLOCK_BYTES: Final = 4 << 20


class _Feature(NamedTuple):
    """The position of a feature's values: an array, and a path of record fields in it."""

    array: int
    fields: tuple[str, ...]


class NumpyRows:
    """Rows of the arrays of one or several files.

    Args:
        paths: One ``.npz`` file, or ``.npy`` files.
        schema: Types fixed by the user, by feature: integers may become floats.

    Raises:
        SourceError: A file is missing or damaged, or an array cannot be a feature.
    """

    kind = KIND
    random_access = True
    sendable = True
    resumable = True
    vocabularies: Mapping[str, list[str]] = {}
    label: str | None = None

    def __init__(
        self, paths: Sequence[str], schema: Mapping[str, FeatureType] | None = None
    ) -> None:
        self._open_files = OpenFiles()
        self._files: list[NumpyFile] = []
        self._arrays: list[tuple[int, Rows]] = []  # each with the number of its file
        copy = Scratch()
        for path in paths:
            file = NumpyFile(path)
            self._open_files.open(file)
            stem, ending = os.path.splitext(os.path.basename(path))
            name = stem if ending.lower() == ".npy" else stem + ending
            self._arrays += [(len(self._files), a) for a in file.scan(name, copy)]
            self._files.append(file)
        first = self._arrays[0][1]
        self.num_items: int | None = first.shape[0]
        for number, array in self._arrays:
            if array.shape[0] != self.num_items:
                raise SourceError(
                    f"{array.name!r} has {array.shape[0]:,} rows, but {first.name!r} has "
                    f"{self.num_items:,}",
                    path=self._files[number].path,
                    hint="save arrays of equal length, with a row for each item",
                )
        row_bytes = sum(array.row_bytes for _, array in self._arrays)
        if not row_bytes and self.num_items > sum(file.size_bytes for file in self._files):
            raise SourceError(
                f"there are {self.num_items:,} rows without values",
                path=paths[0],
                hint="the shape in the file is wrong; write it again",
            )
        self._features: dict[str, _Feature] = {}
        self.plan: Mapping[str, FeatureType] = self._planned(dict(schema or {}), len(paths) > 1)
        self.notes: Sequence[str] = self._copied()
        self.block_items = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // (row_bytes or 1)))

    def _planned(self, fixed: dict[str, FeatureType], is_folder: bool) -> dict[str, FeatureType]:
        plan: dict[str, FeatureType] = {}
        for index, (number, array) in enumerate(self._arrays):
            path = self._files[number].path
            is_alone = len(self._arrays) == 1 and not is_folder and not path.endswith(".npz")
            leaves = list(_leaves(array.dtype, array.shape[1:]))
            if not leaves:
                raise SourceError(
                    f"{array.name!r} has records without fields",
                    path=path,
                    hint="save it with at least one field, or remove it",
                )
            for fields, dtype, shape in leaves:
                name = "/".join(fields if fields and is_alone else (array.name, *fields))
                if name in plan:
                    raise SourceError(f"two arrays are named {name!r}", path=path)
                found = _type_of(name, dtype, shape, path)
                plan[name] = _with_fixed(name, found, fixed.pop(name, None), path)
                self._features[name] = _Feature(index, fields)
        if fixed:
            raise SourceError(
                f"the schema has an array {min(fixed)!r}, which does not exist",
                path=self._files[0].path,
                hint=f"the arrays are {', '.join(plan)}",
            )
        return plan

    def _copied(self) -> list[str]:
        names = [array.name for _, array in self._arrays if array.copy is not None]
        if not names:
            return []
        return [
            f"compressed or Fortran-order arrays were copied into a temporary file: "
            f"{', '.join(names[:5])}{', ...' * (len(names) > 5)}"
        ]

    def items(self) -> Iterator[int]:
        """Yield the row numbers."""
        assert self.num_items is not None
        return iter(range(self.num_items))

    def item(self, item_index: int) -> int:
        """Return a row number."""
        return item_index

    def key(self, item: int) -> str:
        """Return ``row 7``."""
        return f"row {item}"

    def load(self, item: int) -> dict[str, Any]:
        """Return one row as int, float, str, bytes and arrays."""
        return {name: python_value(c.values[0]) for name, c in self.load_columns([item]).items()}

    def load_columns(self, items: Sequence[int]) -> dict[str, Column]:
        """Return rows as columns; rows that are close to each other are read together."""
        found: list[NDArray[Any]] = []
        for number, array in self._arrays:
            self._open_files.open(self._files[number])
            found.append(self._files[number].rows(array, items))
        columns = {}
        for name, (index, fields) in self._features.items():
            values = found[index]
            for field in fields:
                values = values[field]
            if not values.dtype.isnative:
                values = values.astype(values.dtype.newbyteorder("="))
            if values.dtype.kind in "SU":
                columns[name] = Column(self._texts(name, values, index))
            else:
                columns[name] = Column(np.ascontiguousarray(values))
        return columns

    def _texts(self, name: str, values: NDArray[Any], index: int) -> list[Any]:
        try:
            texts: list[Any] = values.tolist()
        except (SystemError, ValueError) as error:
            raise SourceError(
                "text has code points that are not characters",
                path=self._files[self._arrays[index][0]].path,
                feature=name,
                hint="write the file again",
            ) from error
        return texts

    def digest(self) -> dict[str, Any]:
        """Return the names of the arrays, and the sizes and checksums of the files."""
        return {"arrays": self._names(), "files": [[f.size_bytes, _crc(f)] for f in self._files]}

    def fingerprint(self) -> dict[str, Any]:
        """Return the digest with the modification times of the files."""
        files = [[f.size_bytes, _crc(f), f.mtime_ns] for f in self._files]
        return {"arrays": self._names(), "files": files}

    def _names(self) -> list[str]:
        return [array.name for _, array in self._arrays]


def _crc(file: NumpyFile) -> str:
    return f"{file.crc32c:08x}"


def _leaves(
    dtype: np.dtype[Any], shape: tuple[int, ...], fields: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], np.dtype[Any], tuple[int, ...]]]:
    """Yield the fields of records, at any depth, as (path of names, dtype, shape of a row)."""
    if dtype.subdtype is not None:
        base, inner = dtype.subdtype
        yield from _leaves(base, (*shape, *inner), fields)
    elif dtype.names is not None:
        for name in dtype.names:
            yield from _leaves(dtype[name], shape, (*fields, name))
    else:
        yield fields, dtype, shape


def _type_of(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], path: str) -> FeatureType:
    if dtype.kind in "biu":
        return FeatureType("int64", dtype.name, shape)
    if dtype.kind == "f" and dtype.itemsize <= 8:
        return FeatureType("float", float_dtype(dtype.name), shape)
    if dtype.kind in "SU" and len(shape) < 2:
        return FeatureType("bytes", "string" if dtype.kind == "U" else "bytes", shape)
    hints = {
        "M": "save .astype('int64'), or text",
        "m": "save .astype('int64')",
        "c": "save .real and .imag",
        "f": "save .astype('float64')",
    }
    raise SourceError(
        f"an array of {dtype}{list(shape) if dtype.kind in 'SU' else ''} can not be stored in a "
        "feature (int64, float32 or bytes)",
        path=path,
        feature=name,
        hint=hints.get(dtype.kind, "save it as numbers or text"),
    )


def _with_fixed(name: str, found: FeatureType, fixed: FeatureType | None, path: str) -> FeatureType:
    if fixed is None or (fixed.kind in (None, found.kind) and fixed.encoding == found.encoding):
        return found
    if (found.kind, fixed.kind) == ("int64", "float"):
        return replace(found, kind=fixed.kind, dtype=fixed.dtype)
    raise SourceError(
        f"the schema has {fixed.dtype}, but the array is {found.dtype}",
        path=path,
        feature=name,
        hint="save the array with this dtype",
    )
