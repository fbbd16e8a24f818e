"""Many payloads read at once: a walk through all of them in lockstep, with numpy.

At every step the next map entry of all rows is read: ``at`` and ``ends`` are ``int64[n]`` positions
in the joined payloads. Then each feature is read over all rows that have it. Rows may differ in
which features they have, in their order and in their kinds. What is not in the form that nearly all
writers write makes a row *odd*; it is left to those who read one by one, and so is every defect.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import WireError
from shardwriter.formats.example_bodies import Cells, Rows, in_rows, is_body, read_bodies, windows
from shardwriter.formats.example_plain import decode_plain_list
from shardwriter.formats.example_wire import KIND_OF_TAG, TAG_1, TAG_2, Values
from shardwriter.formats.feature_values import UNSET, Unset

# Zeros after the last payload: a tag and a size that are cut off there are looked for so far on.
_PADDING: Final = 16
# When so few rows still have entries, walking on with them alone costs more than one by one.
_MIN_ROWS: Final = 6


class Part(NamedTuple):
    """A feature in the rows that have it.

    Attributes:
        rows: ``int64[m]``, ascending.
        cells: What row ``rows[i]`` holds is ``cells[i]``; None where the row turned out odd.
    """

    rows: Rows
    cells: Cells


class _Spans(NamedTuple):
    """Where the Features of a name lie: row, first byte, and the byte behind the last.

    With a tag other than 0 they all are a list of that tag with one field, whose content is in
    ``body[i]:ends[i]``.
    """

    rows: Rows
    at: Rows
    ends: Rows
    body: Rows
    tag: int = 0


def read_in_lockstep(payloads: Sequence[bytes]) -> tuple[dict[str, Part], NDArray[np.bool_]]:
    """Read all rows that can be read together.

    Args:
        payloads: The payloads of n records.

    Returns:
        The features by name, in the order in which they appear; and ``bool[n]``, the rows that
        were read: each byte of them belongs to a known field of an Example. Cells of other rows
        mean nothing.
    """
    sizes = np.fromiter(map(len, payloads), np.int64, len(payloads))
    ends = np.cumsum(sizes)
    blob = b"".join([*payloads, bytes(_PADDING)])
    data = np.frombuffer(blob, np.uint8)
    good = np.ones(len(payloads), np.bool_)
    spans = _walk(blob, data, ends - sizes, ends, good)
    features = {}
    for name, found in spans.items():
        try:
            key = name.decode()
        except UnicodeDecodeError:
            good[found.rows] = False
            continue
        features[key] = Part(found.rows, _read_features(blob, data, found, good))
    return features, good


def _walk(
    blob: bytes, data: NDArray[np.uint8], starts: Rows, ends: Rows, good: NDArray[np.bool_]
) -> dict[bytes, _Spans]:
    """Find the Features of all rows, by name; a row that is not plain is no longer ``good``."""
    at, stop, right = _enter(data, starts, ends, TAG_1)
    good &= right & (stop == ends)
    rows = np.flatnonzero(good & (at < ends))
    at = at[rows]
    pieces: dict[bytes, list[_Spans]] = {}
    while rows.size:
        if rows.size < min(_MIN_ROWS, good.size):
            good[rows] = False
            break
        short = _enter_alike(data, at, ends[rows])
        if short is not None:
            name, tag, feature, body, stop = short
            pieces.setdefault(name, []).append(_Spans(rows, feature, stop, body, tag))
            more = stop < ends[rows]
            rows, at = (rows, stop) if more.all() else (rows[more], stop[more])
            continue
        entry, stop, right = _enter(data, at, ends[rows], TAG_1)
        name_at, name_end, named = _enter(data, entry, stop, TAG_1)
        feature, feature_end, valued = _enter(data, name_end, stop, TAG_2)
        right &= named & valued & (feature_end == stop)
        if not right.all():
            good[rows[~right]] = False
            rows, name_at, name_end = rows[right], name_at[right], name_end[right]
            feature, stop = feature[right], stop[right]
        named_rows = _by_name(blob, data, name_at, name_end)
        if len(named_rows) * _MIN_ROWS > rows.size:
            # So few rows share a name that reading them by names costs more than one by one.
            good[rows] = False
            break
        for name, which in named_rows:
            span = _Spans(rows, feature, stop, feature)
            if which is not None:
                span = _Spans(rows[which], feature[which], stop[which], feature[which])
            pieces.setdefault(name, []).append(span)
        more = stop < ends[rows]
        if more.all():
            at = stop
        else:
            rows, at = rows[more], stop[more]
    return {name: _join(found, good) for name, found in pieces.items()}


def _by_name(
    blob: bytes, data: NDArray[np.uint8], at: Rows, ends: Rows
) -> list[tuple[bytes, Rows | None]]:
    """Sort entries by their names; None stands for all of them."""
    if not at.size:
        return []
    name = blob[at[0] : ends[0]]
    size = len(name)
    if (ends - at == size).all():
        first = np.frombuffer(name, np.uint8)
        if size == 0 or (data[at[:, None] + np.arange(size)] == first).all():
            return [(name, None)]
    names = [blob[a:b] for a, b in zip(at.tolist(), ends.tolist(), strict=True)]
    codes: dict[bytes, int] = {}
    numbered = np.fromiter((codes.setdefault(n, len(codes)) for n in names), np.int64, len(names))
    order = np.argsort(numbered, kind="stable")
    bounds = np.searchsorted(numbered[order], np.arange(len(codes) + 1)).tolist()
    return [(name, order[a:b]) for name, (a, b) in zip(codes, pairwise(bounds), strict=True)]


def _join(found: list[_Spans], good: NDArray[np.bool_]) -> _Spans:
    """Join what several steps found of a name; of a name that comes twice the last one counts."""
    if len(found) == 1:
        return found[0]
    rows = np.concatenate([spans.rows for spans in found])
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    twice = rows[1:] == rows[:-1]
    good[rows[1:][twice]] = False
    at = np.concatenate([spans.at for spans in found])[order]
    ends = np.concatenate([spans.ends for spans in found])[order]
    return _Spans(rows, at, ends, at)


def _read_features(
    blob: bytes, data: NDArray[np.uint8], spans: _Spans, good: NDArray[np.bool_]
) -> Cells:
    """Read one feature of all rows that have it."""
    rows, at, ends, body, tag = spans
    if tag and is_body(data, KIND_OF_TAG[tag], body, ends).all():
        try:
            return read_bodies(blob, data, KIND_OF_TAG[tag], body, ends)
        except WireError:
            pass  # one of them: `_read_lists` finds out which
    tags = np.where(at < ends, data[at], 0)
    if tags.size and tags[0] in KIND_OF_TAG and (tags == tags[0]).all():
        return _read_lists(blob, data, spans, int(tags[0]), good)
    cells: list[Values | Unset | None] = [None] * rows.size
    for tag in np.unique(tags).tolist():
        which = np.flatnonzero(tags == tag)
        if tag == 0:
            # Byte 0 is no tag, so these are empty, or not plain.
            good[rows[which][at[which] < ends[which]]] = False
            found: Cells = [UNSET] * which.size
        elif tag in KIND_OF_TAG:
            part = _Spans(rows[which], at[which], ends[which], at[which])
            found = _read_lists(blob, data, part, tag, good)
        else:
            good[rows[which]] = False
            continue
        for i, cell in zip(which.tolist(), in_rows(found), strict=True):
            cells[i] = cell
    return cells


def _read_lists(
    blob: bytes, data: NDArray[np.uint8], spans: _Spans, tag: int, good: NDArray[np.bool_]
) -> Cells:
    """Read Features of one kind: those with one field at once, the others one by one."""
    rows, at, ends, *_ = spans
    kind = KIND_OF_TAG[tag]
    items, items_end, right = _enter(data, at, ends, tag)
    body, body_end, single = _enter(data, items, ends, TAG_1)
    single &= right & (items_end == ends) & (body_end == ends)
    single &= is_body(data, kind, body, ends)
    if single.all():
        try:
            return read_bodies(blob, data, kind, body, ends)
        except WireError:
            single[:] = False
    cells: list[Values | Unset | None] = [None] * rows.size
    which = np.flatnonzero(single)
    if which.size:
        try:
            bodies = read_bodies(blob, data, kind, body[which], ends[which])
        except WireError:
            single[:] = False
        else:
            for i, values in zip(which.tolist(), in_rows(bodies), strict=True):
                cells[i] = values
    for i in np.flatnonzero(~single).tolist():
        listed = decode_plain_list(blob, int(at[i]), int(ends[i]))
        if listed is None:
            good[rows[i]] = False
        cells[i] = listed
    return cells


def _enter_alike(
    data: NDArray[np.uint8], at: Rows, limits: Rows
) -> tuple[bytes, int, Rows, Rows, Rows] | None:
    """Read the heads of map entries that differ in nothing but one size, under 128 bytes.

    They are ``0a S 0a <name> 12 F | tag I | 0a B``, where each size reaches to the end of the
    entry: then the sizes of all rows differ from those of the first row by the same number.

    Returns:
        The name, the tag of the list, and where Features and contents start and where both end,
        ``int64[n]``; None where it is not so.
    """
    first_at = int(at[0])
    name_bytes = int(data[first_at + 3])
    num_bytes = name_bytes + 10
    if name_bytes >= 0x80 or int(at.max()) + num_bytes > data.size:
        return None
    heads = windows(data, num_bytes)[at]
    first = heads[0].copy()
    size = int(first[1])
    tag = int(first[-4])
    sizes = [name_bytes + 5, name_bytes + 7, name_bytes + 9]
    told = [size - name_bytes - 4, size - name_bytes - 6, size - name_bytes - 8]
    if first[sizes].tolist() != told or tag not in KIND_OF_TAG:
        return None
    tags = (int(first[0]), int(first[2]), int(first[-6]), int(first[-2]))
    if tags != (TAG_1, TAG_1, TAG_2, TAG_1) or (heads[:, 1] >= 0x80).any():
        return None
    own = heads[:, 1].astype(np.int64)
    step = heads[:, 1] - first[1]
    for column in (1, *sizes):
        heads[:, column] -= step
    stop = at + own + 2
    if not (heads == first).all() or (stop > limits).any() or (own < num_bytes - 2).any():
        return None
    name = first[4 : 4 + name_bytes].tobytes()
    return name, tag, at + (name_bytes + 6), at + num_bytes, stop


def _enter(
    data: NDArray[np.uint8], at: Rows, limits: Rows, tag: int
) -> tuple[Rows, Rows, NDArray[np.bool_]]:
    """Read ``<tag> <size>`` at every position, within its limit.

    Returns:
        Where the contents start and end, ``int64[n]``, and ``bool[n]``: where there are any. The
        positions of the others are anywhere in ``data``.
    """
    right = (at < limits) & (data[at] == tag)
    at = at + 1
    byte = data[at]
    size = (byte & 0x7F).astype(np.int64)
    more = byte >= 0x80
    at += 1
    for shift in (7, 14, 21):
        if not more.any():
            break
        byte = data[at]
        size |= np.where(more, byte & 0x7F, 0).astype(np.int64) << shift
        at += more
        more &= byte >= 0x80
    end = at + size
    right &= ~more & (end <= limits)
    if not right.all():
        at, end = np.minimum(at, limits), np.minimum(end, limits)
    return at, end, right
