"""Reading single records of a dataset through its index, proven like any other record."""

from __future__ import annotations

from collections import OrderedDict
from io import BytesIO
from typing import Final

from isal import isal_zlib

from shardwriter.compressed_writer import EMPTY_DEFLATE
from shardwriter.compression import DEFLATE_ERROR, RAW_WBITS, Compression, InflateStream
from shardwriter.cursor import ByteStream
from shardwriter.errors import CorruptFile
from shardwriter.index import Index, Place
from shardwriter.storage.inputs import inputs_for
from shardwriter.storage.local import storage_errors
from shardwriter.tfrecord import FRAME_BYTES
from shardwriter.tfrecord_reader import read_frames

_MIN_KEPT: Final = 64  # members; up to here of a megabyte each, of more shards smaller
_MAX_KEPT: Final = 1024


class IndexedReader:
    """Reads records from where an index says that they are.

    The members of compressed shards that were used last are kept: records that are neighbours in
    reading order come from the same N members again and again.

    Args:
        index: The index of the dataset.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._max_kept = max(_MIN_KEPT, min(_MAX_KEPT, len(index.counts)))
        self._kept: OrderedDict[tuple[int, int], list[bytes]] = OrderedDict()

    def read(self, path: str, shard: int, position: int) -> bytes:
        """Return record ``position`` of a shard.

        Args:
            path: The shard's file.
            shard: Its number.
            position: The record's number in the shard.

        Raises:
            CorruptFile: It is damaged, or the index is not that of this file.
            ManifestError: The index has no such record.
            StorageError: The shard can not be read.
        """
        place = self._index.place(shard, position)
        key = shard, place.begin
        records = self._kept.get(key)
        if records is None:
            records = self._read_piece(path, place, position)
            if self._index.compression != "none":
                self._kept[key] = records
                if len(self._kept) > self._max_kept:
                    self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(key)
        return records[place.skip]

    def _read_piece(self, path: str, place: Place, position: int) -> list[bytes]:
        """Return the records of a frame, member or block."""
        first = position - place.skip
        try:
            records = read_piece(path, place.begin, place.end, self._index.compression)
        except CorruptFile as error:
            error.record_index = first + (error.record_index or 0)
            # Of a member it is not known where in the uncompressed stream it begins.
            error.offset = place.begin if self._index.compression == "none" else None
            raise
        fits = len(records) == place.num_records
        if self._index.compression == "none":
            fits = fits and len(records[0]) + FRAME_BYTES == place.end - place.begin
        if not fits:
            raise CorruptFile(
                "what is here is not what the index says",
                kind="index",
                path=path,
                record_index=position,
                offset=place.begin if self._index.compression == "none" else None,
                hint="`shardwriter verify` says what is wrong with the shard",
            )
        return records


def read_piece(path: str, begin: int, end: int, compression: Compression) -> list[bytes]:
    """Return the records of the frames, the member or the block between two offsets of a file.

    Raises:
        CorruptFile: They are damaged.
        StorageError: The file can not be read.
    """
    with storage_errors(path), inputs_for(path).open(path) as file:
        piece = file.read_at(begin, end - begin)
    return list(read_frames(_uncompressed(piece, path, compression), path=path))


def _uncompressed(piece: bytes, path: str, compression: Compression) -> ByteStream:
    if compression == "none":
        return BytesIO(piece)
    if compression == "gzip":
        return InflateStream(BytesIO(piece), "gzip", path)
    # Behind a whole block, and nowhere else, the empty last block ends the stream.
    inflater = isal_zlib.decompressobj(wbits=RAW_WBITS)
    why = "it is no whole block"
    try:
        data = inflater.decompress(piece + EMPTY_DEFLATE)
        if inflater.eof and not inflater.unused_data:
            return BytesIO(data)
    except DEFLATE_ERROR as error:
        why = str(error)
    raise CorruptFile(f"compressed data is broken: {why}", kind="bad-deflate", path=path)
