"""Items in any order, sorted by a salted hash of their keys, and numbered.

The hash assigns an item to one of B buckets. The index of an item is the size of the buckets before
its own plus its position there. A bucket is sorted once it is complete, and stored in a file until
the sizes of all are known::

    packed item    u64 hash of the key, u64 bytes of the key, key, pickled item
    bucket file    frames of a TFRecord file, each a packed item, in order

It is read once, in runs (:mod:`shardwriter.cluster.parts`); later steps do not use the keys.
Unpickling an item runs code, and others may be able to write to the file's folder: the file is
copied and compared with the SHA-256 from the pipeline before an item is unpickled.
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

from shardwriter.cluster.launch import LaunchOutput, new_attempt
from shardwriter.cluster.parts import Partitioning
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
"""The feature that is an item's key, or a function that returns the key."""


class KeyedItems:
    """The items of a PCollection, as the source of a job.

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
        """Not available: the items are in a pipeline."""
        raise NotImplementedError

    def item(self, item_index: int) -> tuple[bytes, bytes]:
        """Not available: the items are in a pipeline."""
        raise NotImplementedError

    def key(self, item: tuple[bytes, bytes]) -> str:
        """Return the key as text."""
        return item[0].decode("utf-8", "backslashreplace")

    def load(self, item: tuple[bytes, bytes]) -> Any:
        """Return the features."""
        return pickle.loads(item[1])

    def digest(self) -> dict[str, Any]:
        """Return nothing: the identity of the data is known only after all items were read."""
        return {}

    def fingerprint(self) -> dict[str, Any]:
        """Return nothing, as :meth:`digest`."""
        return {}


def keys_digest(key_sum: int, num_items: int) -> dict[str, Any]:
    """Return the identity of a set of keys, which does not depend on their order."""
    total = key_sum % (1 << 8 * _KEY_DIGEST_BYTES)
    return {"keys": f"{total:0{2 * _KEY_DIGEST_BYTES}x}", "num_items": num_items}


def bucket_of(item: Any, key: KeyOf, seed: int, num_buckets: int) -> tuple[int, bytes]:
    """Return an item's bucket, and the item packed with its key.

    Raises:
        FeatureError: The item has no key, or one of another type.
        CallableError: The key function raised.
    """
    if isinstance(key, str):
        text = key_of(item, key)
    else:
        try:
            value = key(item)
        except Exception as error:
            raise CallableError(
                f"the key function raised {type(error).__name__}: {reason(error)}"
            ) from error
        text = key_bytes(value)
    if not isinstance(item, (bytes, Mapping)) and own_fields(item) is None:
        raise FeatureError(
            f"the item is of type {type(item).__name__}, not a mapping of features",
            hint="give WriteShards feature dicts, or bytes, which are finished records",
            item=text.decode("utf-8", "backslashreplace"),
        )
    number = key_hash(text, seed)
    packed = b"".join((_HEAD.pack(number, len(text)), text, pickle.dumps(item, 5)))
    return number * num_buckets // _HASHES, packed


def _key(packed: bytes) -> tuple[int, bytes, int]:
    """Return the hash and the key of a packed item, and the offset of the item."""
    number, size = _HEAD.unpack_from(packed)
    end = _HEAD.size + size
    return number, packed[_HEAD.size : end], end


@dataclass(frozen=True)
class Bucket:
    """A sorted bucket.

    Attributes:
        bucket: The number of the bucket.
        path: Its file.
        num_items: Number of items.
        num_bytes: Bytes of the packed items.
        key_sum: Sum of a hash of every key.
        sha256: Hash of the file.
        first_run: The run of its first item; set once all buckets are sorted.
        first_item: The index of its first item; set then too.
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
        """Return the bucket as JSON."""
        return asdict(self)


def write_bucket(out: LaunchOutput, bucket: int, values: Iterable[bytes]) -> Bucket:
    """Sort the items of a bucket, and write them to a file.

    Memory holds their keys and 64 MiB of items; the rest is in a temporary file.

    Args:
        out: The output of the launch.
        bucket: The number of the bucket.
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
        for (_, key, *_), (_, next_key, *_) in pairwise(order):
            if key == next_key:
                raise equal_keys(key)
        path = out.bucket_path(bucket, new_attempt())
        in_file = scratch.num_bytes
        file = _HashedFile(out.storage.create(path))
        with closing(TFRecordWriter(file)) as writer, memoryview(waiting) as rest:
            for _, _, begin, size in order:
                if begin < in_file:
                    writer.write(scratch.read(begin, size))
                else:
                    writer.write(bytes(rest[begin - in_file : begin - in_file + size]))
            writer.flush()
            out.storage.complete(path)
    return Bucket(bucket, path, len(order), num_bytes, key_sum, file.sha256.hexdigest())


class _HashedFile:
    """A file to write whose bytes are hashed."""

    def __init__(self, file: OutputFile) -> None:
        self._file = file
        self.sha256 = sha256()

    def write(self, data: bytes, /) -> None:
        """Append all of ``data``."""
        self.sha256.update(data)
        self._file.write(data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def number_buckets(buckets: Iterable[Bucket], num_shards: int) -> tuple[list[Bucket], Partitioning]:
    """Number the items, and divide them into runs; a run has items of one bucket only.

    A bucket that a runner delivers twice counts once.

    Returns:
        The buckets in order, with their first item and first run; and the partitioning.
    """
    by_number = {bucket.bucket: bucket for bucket in buckets}
    in_order = [by_number[number] for number in sorted(by_number)]
    num_items = sum(bucket.num_items for bucket in in_order)
    num_bytes = sum(bucket.num_bytes for bucket in in_order)
    partitioning = Partitioning.of(num_shards, num_bytes / max(1, num_items))
    numbered = []
    first_item = first_run = 0
    for bucket in in_order:
        numbered.append(replace(bucket, first_run=first_run, first_item=first_item))
        first_item += bucket.num_items
        first_run += partitioning.num_runs(bucket.num_items)
    return numbered, partitioning


def read_bucket(out: LaunchOutput, bucket: Bucket) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    """Yield index and descriptor of the items of a bucket, in order.

    Raises:
        RunError: Its file has changed since it was written.
    """
    with tempfile.TemporaryFile() as copy:
        found = sha256()
        with out.storage.open(bucket.path) as file:
            while data := file.read(_COPY_BYTES):
                found.update(data)
                copy.write(data)
        if found.hexdigest() != bucket.sha256:
            raise RunError(
                "this is not the file that the job wrote; nothing in it was run",
                path=bucket.path,
                hint="check who else may write to the folder, and start the job again",
            )
        copy.seek(0)
        for index, record in enumerate(read_frames(copy, path=bucket.path), bucket.first_item):
            _, key, end = _key(record)
            yield index, (key, record[end:])
