"""Where the features of one Example lie, found fast for records that are like those before.

Records of a dataset have the same names in the same order, and most of their sizes come again. So
what stands before a value, from the map entry's tag to the value's size, is kept by its place among
the entries and the entry's size, and is compared as a whole. Anything else is read as the wire
format says, and what does not fit is left to `example_wire`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, TypeAlias

from shardwriter.errors import WireError
from shardwriter.formats.example_wire import KIND_OF_TAG, TAG_1, TAG_2
from shardwriter.formats.feature_values import blob_head, packed_head
from shardwriter.formats.varint import read_varint

_MAX_PLACES: Final = 256  # of which the heads are kept: entries of one record
_MAX_SMALL: Final = 0x80


#: One feature of a record: its name; the tag of its list, where the list is one field (packed
#: numbers, or one item of bytes), else 0; where the content of that field (with tag 0, of the
#: Feature) starts, and where it ends. A plain tuple: it is made for every value that is read.
Entry: TypeAlias = "tuple[str, int, int, int]"


class EntryFinder:
    """Finds the entries of records, and remembers what they look like."""

    def __init__(self) -> None:
        # By place among the entries, then by size: the bytes before the content, name and tag.
        self._heads: list[dict[int, tuple[bytes, str, int]]] = []

    def find(self, payload: bytes) -> list[Entry] | None:
        """Return the entries of a record in their order.

        Args:
            payload: The payload of one record.

        Returns:
            None where it is not an Example in the form that writers write. The content of a
            Feature with tag 0, and whether packed numbers are whole, is not looked at.
        """
        try:
            at, end = _enter(payload, 0, len(payload), TAG_1) if payload else (0, 0)
            if end != len(payload):
                return None
            entries: list[Entry] = []
            heads = self._heads
            place = 0
            while at < end:
                # Most records look like the last one did.
                known = heads[place].get(payload[at + 1]) if place < len(heads) else None
                if known is not None and payload.startswith(known[0], at):
                    head, name, tag = known
                    start, at = at + len(head), at + 2 + payload[at + 1]
                    entries.append((name, tag, start, at))
                else:
                    entry = self._read(payload, at, end, place)
                    if entry is None:
                        return None
                    entries.append(entry)
                    at = entry[3]
                place += 1
            if at != end:
                return None
        except (WireError, UnicodeDecodeError, IndexError):
            return None
        return entries

    def _read(self, payload: bytes, at: int, limit: int, place: int) -> Entry | None:
        entry, end = _enter(payload, at, limit, TAG_1)
        name_at, name_end = _enter(payload, entry, end, TAG_1)
        name = payload[name_at:name_end].decode()
        feature, feature_end = _enter(payload, name_end, end, TAG_2)
        if feature_end != end:
            return None
        tag = payload[feature] if feature < end else 0
        head = _head_of(tag, end - name_end) if tag in KIND_OF_TAG else None
        if head is None or not payload.startswith(head, name_end):
            return name, 0, feature, end
        start = name_end + len(head)
        if end - entry < _MAX_SMALL and place < _MAX_PLACES and entry == at + 2:
            while place >= len(self._heads):
                self._heads.append({})
            self._heads[place][end - entry] = payload[at:start], name, tag
        return name, tag, start, end


@lru_cache(maxsize=1024)
def _head_of(tag: int, num_bytes: int) -> bytes | None:
    """Return what begins ``num_bytes`` of a Feature, with its tag, up to the content's size."""
    kind = KIND_OF_TAG[tag]
    for head_bytes in (6, 7, 8, 9, *range(10, 19)):  # three sizes of 1 to 5 bytes
        size = num_bytes - head_bytes
        if size < (0 if kind == "bytes" else 1):
            return None
        head = blob_head(size) if kind == "bytes" else packed_head(kind, size)
        if len(head) == head_bytes:
            return head
    return None


def _enter(data: bytes, at: int, end: int, tag: int) -> tuple[int, int]:
    """Read ``<tag> <size>`` in ``data[at:end]``: where the content starts and ends."""
    if data[at] != tag:
        raise WireError("another field", offset=at)
    size = data[at + 1]
    at += 2
    if size >= _MAX_SMALL:
        size, at = read_varint(data, at - 1, end)
    if at + size > end:
        raise WireError("a field reaches over the end of its message", offset=at)
    return at, at + size
