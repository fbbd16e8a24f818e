"""Items in any order, put in that of a salted hash of their keys, and numbered.

A hash says which of B buckets an item belongs to; the buckets follow each other, so an item's
number is the size of the buckets before its own, and its place there. A bucket is sorted when it
has been gathered, and kept in a file until the sizes of all are known::

    packed item    u64 hash of the key, u64 bytes of the key, key, pickled item
    bucket file    frames of a TFRecord file, each a packed item, in order

It is read once, in runs (:mod:`shardwriter.cluster.parts`): what is behind it does not know that
the items had keys. Unpickling an item runs code, and others may be able to write where the file
lies: it is copied and compared with the SHA-256 that came through the pipeline before an item is
taken out.
"""

from __future__ import annotations

import pickle
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b, sha256
from itertools import pairwise
from typing import Any, Final

from shardwriter.cluster.parts import Cut
from shardwriter.cluster.place import Place, new_attempt
from shardwriter.dataset import (
    equal_keys,
    key_bytes,
    key_hash,
    key_of,
)
from shardwriter.errors import CallableError, FeatureError, RunError, reason
from shardwriter.formats import TFRecordWriter, read_frames
from shardwriter.schema import FeatureType, own_fields
from shardwriter.storage import OutputFile, Scratch

KIND: Final = "beam"
NUM_BUCKETS: Final = 256

_HASHES: Final = 1 << 64
_HEAD: Final = struct.Struct("<QQ")
_SPILL_BYTES: Final = 64 << 20
_COPY_BYTES: Final = 1 << 20
_KEY_DIGEST_BYTES: Final = 16

KeyOf = str | Callable[[Any], Any]
"""The feature that is an item's key, or what returns the key."""


class KeyedItems:
    """Items that come with their keys: the source of a job without a source.

    An item is ``(key, pickled features)``.
    """

    kind = KIND
    num_items: int | None = None
    random_access = False
    sendable = True
    resumable = True
    plan: Mapping[str, FeatureType] = {}
    vocabularies: Mapping[str, list[str]] = {}
    label: str | None = None
    notes: Sequence[str] = ()

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """There is no list of them: they come out of a pipeline."""
        raise NotImplementedError

    def item(self, item_index: int) -> tuple[bytes, bytes]:
        """There is none at hand."""
        raise NotImplementedError

    def key(self, item: tuple[bytes, bytes]) -> str:
        """Return the key as text."""
        return item[0].decode("utf-8", "backslashreplace")

    def load(self, item: tuple[bytes, bytes]) -> Any:
        """Return the features."""
        return pickle.loads(item[1])

    def digest(self) -> dict[str, Any]:
        """Return nothing: what identifies the data is known when all of it was seen."""
        return {}

    def fingerprint(self) -> dict[str, Any]:
        """Return nothing, likewise."""
        return {}


def keys_digest(key_sum: int, num_items: int) -> dict[str, Any]:
    """Return what identifies a set of keys, in whatever order they came."""
    total = key_sum % (1 << 8 * _KEY_DIGEST_BYTES)
    return {"keys": f"{total:0{2 * _KEY_DIGEST_BYTES}x}", "num_items": num_items}


def bucket_of(item: Any, key: KeyOf, seed: int, num_buckets: int) -> tuple[int, bytes]:
    """Return an item's bucket, and the item packed with its key.

    Raises:
        FeatureError: It has no key, or one of another type.
        CallableError: The function that returns the key raised.
    """
    if isinstance(key, str):
        text = key_of(item, key)
    else:
        try:
            value = key(item)
        except Exception as error:
            raise CallableError(
                f"the key raised {type(error).__name__}: {reason(error)}"
            ) from error
        text = key_bytes(value)
    if not isinstance(item, (bytes, Mapping)) and own_fields(item) is None:
        raise FeatureError(
            f"the item is of type {type(item).__name__}, not a mapping of features",
            hint="end the pipeline with feature dicts, or with bytes, which are finished records",
            item=text.decode("utf-8", "backslashreplace"),
        )
    number = key_hash(text, seed)
    packed = b"".join((_HEAD.pack(number, len(text)), text, pickle.dumps(item, 5)))
    return number * num_buckets // _HASHES, packed


def _key(packed: bytes) -> tuple[int, bytes, int]:
    """Return the hash and the key of a packed item, and where the item begins."""
    number, size = _HEAD.unpack_from(packed)
    end = _HEAD.size + size
    return number, packed[_HEAD.size : end], end


@dataclass(frozen=True)
class Bucket:
    """A sorted bucket.

    Attributes:
        bucket: Its number.
        path: Its file.
        num_items: Its items.
        num_bytes: Their bytes, packed.
        key_sum: Sum of a hash of every key.
        sha256: Of the file.
        first_run: The run of its first items; known when all buckets are there.
        first_item: The number of its first item, likewise.
    """

    bucket: int
    path: str
    num_items: int
    num_bytes: int
    key_sum: int
    sha256: str
    first_run: int = 0
    first_item: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON."""
        return asdict(self)


def write_bucket(place: Place, bucket: int, values: Iterable[bytes]) -> Bucket:
    """Sort the items of a bucket, and keep them in a file.

    Memory holds their keys and 64 MiB; what is more waits in a temporary file.

    Args:
        place: Where.
        bucket: Its number.
        values: Packed items, in any order.

    Raises:
        SourceError: Two items have one key.
    """
    order: list[tuple[int, bytes, int, int]] = []  # hash, key, begin, end
    num_bytes = key_sum = 0
    with closing(Scratch()) as scratch:
        waiting = bytearray()
        for value in values:
            number, key, _ = _key(value)
            order.append((number, key, num_bytes, len(value)))
            num_bytes += len(value)
            digest = blake2b(key, digest_size=_KEY_DIGEST_BYTES).digest()
            key_sum += int.from_bytes(digest, "little")
            waiting += value
            if len(waiting) >= _SPILL_BYTES:
                scratch.append(bytes(waiting))
                waiting.clear()
        order.sort()
        for one, another in pairwise(order):
            if one[1] == another[1]:
                raise equal_keys(one[1])
        path = place.bucket_path(bucket, new_attempt())
        in_file = scratch.num_bytes
        file = _Hashing(place.storage.create(path))
        with closing(TFRecordWriter(file)) as writer, memoryview(waiting) as rest:
            for _, _, begin, size in order:
                if begin < in_file:
                    writer.write(scratch.read(begin, size))
                else:
                    writer.write(bytes(rest[begin - in_file : begin - in_file + size]))
            writer.flush()
            place.storage.complete(path)
    return Bucket(bucket, path, len(order), num_bytes, key_sum, file.sha256.hexdigest())


class _Hashing:
    """A growing file whose bytes are hashed on their way."""

    def __init__(self, file: OutputFile) -> None:
        self._file = file
        self.sha256 = sha256()

    def write(self, data: bytes, /) -> None:
        """Append all of ``data``."""
        self.sha256.update(data)
        self._file.write(data)

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


def number_buckets(buckets: Iterable[Bucket], num_shards: int) -> tuple[list[Bucket], Cut]:
    """Number the items, and cut them into runs; a run has items of one bucket only.

    A bucket that a runner delivers twice counts once.

    Returns:
        The buckets in order, with the numbers of their first item and their first run; and the cut.
    """
    by_number = {bucket.bucket: bucket for bucket in buckets}
    in_order = [by_number[number] for number in sorted(by_number)]
    num_items = sum(bucket.num_items for bucket in in_order)
    num_bytes = sum(bucket.num_bytes for bucket in in_order)
    cut = Cut.of(num_shards, num_bytes / max(1, num_items))
    numbered = []
    first_item = first_run = 0
    for bucket in in_order:
        numbered.append(replace(bucket, first_run=first_run, first_item=first_item))
        first_item += bucket.num_items
        first_run += cut.num_runs(bucket.num_items)
    return numbered, cut


def read_bucket(place: Place, bucket: Bucket) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    """Yield index and descriptor of the items of a bucket, in order.

    Raises:
        RunError: Its file is not the one that was written.
    """
    with tempfile.TemporaryFile() as copy:
        found = sha256()
        with place.storage.open(bucket.path) as file:
            while data := file.read(_COPY_BYTES):
                found.update(data)
                copy.write(data)
        if found.hexdigest() != bucket.sha256:
            raise RunError(
                "it is not the file that this job has written",
                path=bucket.path,
                hint="nothing in it was run; see who else may write there, and start the job again",
            )
        copy.seek(0)
        for index, record in enumerate(read_frames(copy, path=bucket.path), bucket.first_item):
            _, key, end = _key(record)
            yield index, (key, record[end:])
