"""``webdataset``: tar files of samples; a sample is a record.

Members that follow each other and agree up to the first dot of their names are a sample, which is
WebDataset's rule (:mod:`shardwriter.sources.tar_samples`). Its features are ``__key__`` and one for
each extension. What a feature is follows from the last part of its extension alone: ``cls`` is an
integer as text, and becomes int64; ``txt`` and ``json`` are strings; names of image files have
images, and all else is bytes. Nothing is decoded but ``cls``.

Where WebDataset would split a sample in two, as its members do not follow each other, that is an
error here: an image and its label would come apart.

Of plain files a first pass over the headers finds where every sample begins, so that any of them is
at hand. Where a file is packed, all are streams: read once, front to back.
"""

from __future__ import annotations

import stat
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, Final, NamedTuple

from shardwriter.errors import CorruptFile, SourceError
from shardwriter.formats.compression import OpenStream
from shardwriter.formats.images import EXTENSIONS
from shardwriter.schema.feature_types import FeatureType
from shardwriter.sources.positions import OffsetTable, OpenFiles, file_changed
from shardwriter.sources.tar_members import StreamedBytes
from shardwriter.sources.tar_samples import Sample, TarFile, check_size, samples_in
from shardwriter.storage.file_pool import max_open_files
from shardwriter.storage.inputs import (
    InputChanged,
    absolute,
    common_folder,
    inputs_for,
    open_stream,
    relative,
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
