"""Encode and decode batches of ``tf.train.Example`` as columns, faster than one by one.

Decoding reads the next map entry of all rows at once with numpy, then each feature over all rows
that have it. Rows may differ in their features, order and kinds. A row that is not in the usual
form is *odd*; it is left to the decoders of single records, and so are all errors::

    payloads -> read_batch -> {name: Part(rows, cells)} -> add_rows (odd rows) -> columns

Encoding makes lists of byte strings with one item per row for each column, and joins them by row.

In the decoding functions ``data`` is the concatenation of all payloads, with `_PADDING` zeros at
the end; ``at``, ``body`` and ``ends`` are ``int64[n]`` positions in it: the content of row i is
``data[body[i]:ends[i]]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, pairwise
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import FeatureError, WireError
from shardwriter.formats.example import EntryHeads, sort_names
from shardwriter.formats.example_wire import (
    KIND_OF_TAG,
    TAG_1,
    TAG_2,
    Values,
    decode_example,
    decode_plain_example,
    decode_plain_list,
)
from shardwriter.formats.feature_values import (
    PRECISION,
    UNSET,
    UNSET_FEATURE,
    Kind,
    Unset,
    as_blob,
    as_float32,
    as_integers,
    blob_head,
    encode_value,
    integers_as_float64,
    packed_head,
)
from shardwriter.formats.varint import decode_varints, encode_varint, encode_varints, varint_sizes

Rows: TypeAlias = "NDArray[np.int64]"
# The values of a feature in the rows that have it: an array, or a list with one item per row.
Cells: TypeAlias = (
    "NDArray[np.int64] | NDArray[np.float32] | SingleBlobs | list[Values | Unset | None]"
)

_WORD_BYTES: Final = 8
# Larger lists are decoded one by one: together they would not fit the processor's cache.
_LONG_LIST_BYTES: Final = 1 << 14
_HIGH_BITS: Final = np.uint64(0x8080808080808080)
_ONE: Final = np.uint64(1)


class SingleBlobs(list[bytes]):
    """The bytes of rows that have one value each, without a list around each value."""

    def in_lists(self) -> list[Values | Unset | None]:
        """Return the values by row, as lists of one."""
        return [[blob] for blob in self]


def in_rows(cells: Cells) -> Iterable[Values | Unset | None]:
    """Return cells as an iterable with one item per row."""
    return cells.in_lists() if isinstance(cells, SingleBlobs) else cells


def is_body(data: NDArray[np.uint8], kind: str, body: Rows, ends: Rows) -> NDArray[np.bool_]:
    """Return ``bool[n]``: whether each content can be that of a list's only field."""
    if kind == "float":
        return np.asarray((ends - body) % 4 == 0)
    if kind == "int64":
        # Each row has to end with the last byte of a varint.
        return np.asarray((body < ends) & (data[ends - 1] < 0x80))
    return np.ones(body.size, np.bool_)


def read_bodies(blob: bytes, data: NDArray[np.uint8], kind: str, body: Rows, ends: Rows) -> Cells:
    """Return the values of lists whose only field is in ``blob[body[i]:ends[i]]``."""
    sizes = ends - body
    if kind == "int64" and sizes.max(initial=0) <= _WORD_BYTES:
        numbers = _read_single_varints(data, body, sizes)
        if numbers is not None:
            return numbers
    if kind == "float" and (sizes == 4).all():
        floats: NDArray[np.float32] = windows(data, 4)[body].view("<f4")
        return floats.astype(np.float32, copy=False)
    if kind == "int64" and sizes.sum() >= _LONG_LIST_BYTES * sizes.size:
        bounds = zip(body.tolist(), ends.tolist(), strict=True)
        lists = [decode_varints(data[a:b]) for a, b in bounds]
        is_uniform = len({values.size for values in lists}) == 1
        return np.stack(lists) if is_uniform else [*lists]
    bodies = [blob[a:b] for a, b in zip(body.tolist(), ends.tolist(), strict=True)]
    if kind == "bytes":
        return SingleBlobs(bodies)
    packed = np.frombuffer(b"".join(bodies), np.uint8)
    flat: NDArray[np.int64] | NDArray[np.float32]
    if kind == "float":
        flat, counts = packed.view("<f4").astype(np.float32), sizes // 4
    else:
        flat = decode_varints(packed)
        # No row is empty, see `is_body`.
        counts = np.add.reduceat(packed < 0x80, np.cumsum(sizes) - sizes, dtype=np.int64)
    if (counts == counts[0]).all():
        return flat.reshape(body.size, -1)
    splits = [0, *np.cumsum(counts).tolist()]
    return [flat[a:b] for a, b in pairwise(splits)]


def _read_single_varints(
    data: NDArray[np.uint8], body: Rows, sizes: Rows
) -> NDArray[np.int64] | None:
    """Return one varint of up to 8 bytes per position, ``int64[n, 1]``; None if one is longer."""
    words = windows(data, _WORD_BYTES)[body].view("<u8").reshape(-1).astype(np.uint64, copy=False)
    unused = (8 * (_WORD_BYTES - sizes)).astype(np.uint64)
    more = (~np.uint64(0) >> unused) >> np.uint64(8)  # the bytes before the last one
    if ((words & _HIGH_BITS & more) != (_HIGH_BITS & more)).any():
        return None
    # The groups of 7 bits are joined in pairs, then fours, then eights.
    low = words & (~np.uint64(0) >> unused) & ~_HIGH_BITS
    low = (low & np.uint64(0x007F007F007F007F)) | ((low & np.uint64(0x7F007F007F007F00)) >> _ONE)
    low = (low & np.uint64(0x00003FFF00003FFF)) | (
        (low & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2)
    )
    low = (low & np.uint64(0x000000000FFFFFFF)) | (
        (low & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4)
    )
    return np.asarray(low).view(np.int64).reshape(-1, 1)


def windows(data: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Return a view ``uint8[positions, size]`` of ``data``: the bytes from each position on."""
    shape = (data.size - size + 1, size)
    view: NDArray[np.uint8] = np.ndarray(shape, np.uint8, data, strides=(1, 1))
    return view


# Zeros after the last payload, so that reading a tag and a size never runs past the end of
# ``data``.
_PADDING: Final = 16
# For fewer remaining rows, decoding one by one is faster.
_MIN_ROWS: Final = 6


class Part(NamedTuple):
    """A feature in the rows that have it.

    Attributes:
        rows: ``int64[m]``, ascending.
        cells: ``cells[i]`` is the value of row ``rows[i]``; None if the row is odd.
    """

    rows: Rows
    cells: Cells


class _Spans(NamedTuple):
    """The positions of the Features of one name: rows, starts and ends.

    With a tag other than 0, each is a list of that tag with one field, whose content is
    ``body[i]:ends[i]``.
    """

    rows: Rows
    at: Rows
    ends: Rows
    body: Rows
    tag: int = 0


def read_batch(payloads: Sequence[bytes]) -> tuple[dict[str, Part], NDArray[np.bool_]]:
    """Return the features of all rows that can be decoded together.

    Args:
        payloads: The payloads of n records.

    Returns:
        The features by name, in order of appearance; and ``bool[n]``: the rows that were decoded,
        each byte of which belongs to a known field of an Example. Cells of other rows are
        undefined.
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
    """Return the positions of the Features of all rows by name; clear ``good`` for odd rows."""
    at, stop, right = _enter(data, starts, ends, TAG_1)
    good &= right & (stop == ends)
    rows = np.flatnonzero(good & (at < ends))
    at = at[rows]
    spans: dict[bytes, list[_Spans]] = {}
    while rows.size:
        if rows.size < min(_MIN_ROWS, good.size):
            good[rows] = False
            break
        short = _enter_uniform(data, at, ends[rows])
        if short is not None:
            name, tag, feature, body, stop = short
            spans.setdefault(name, []).append(_Spans(rows, feature, stop, body, tag))
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
            # Few rows share a name, so decoding one by one is faster.
            good[rows] = False
            break
        for name, which in named_rows:
            span = _Spans(rows, feature, stop, feature)
            if which is not None:
                span = _Spans(rows[which], feature[which], stop[which], feature[which])
            spans.setdefault(name, []).append(span)
        more = stop < ends[rows]
        if more.all():
            at = stop
        else:
            rows, at = rows[more], stop[more]
    return {name: _join(found, good) for name, found in spans.items()}


def _by_name(
    blob: bytes, data: NDArray[np.uint8], at: Rows, ends: Rows
) -> list[tuple[bytes, Rows | None]]:
    """Return entries grouped by name; None in place of indices means all entries."""
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
    """Return the spans of several steps as one; a row that repeats a name becomes odd."""
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
    """Return the values of one feature in all rows that have it."""
    rows, at, ends, body, tag = spans
    if tag and is_body(data, KIND_OF_TAG[tag], body, ends).all():
        try:
            return read_bodies(blob, data, KIND_OF_TAG[tag], body, ends)
        except WireError:
            pass  # in one of the rows; `_read_lists` finds it
    tags = np.where(at < ends, data[at], 0)
    if tags.size and tags[0] in KIND_OF_TAG and (tags == tags[0]).all():
        return _read_lists(blob, data, spans, int(tags[0]), good)
    cells: list[Values | Unset | None] = [None] * rows.size
    for tag in np.unique(tags).tolist():
        which = np.flatnonzero(tags == tag)
        if tag == 0:
            # 0 is not a tag, so these Features are empty, or their rows odd.
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
    """Return Features of one kind: those with one field decoded at once, others one by one."""
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


def _enter_uniform(
    data: NDArray[np.uint8], at: Rows, limits: Rows
) -> tuple[bytes, int, Rows, Rows, Rows] | None:
    """Read the heads of map entries that differ only in the size of the value; a fast path.

    They are ``0a S 0a <name> 12 F | tag I | 0a B`` with sizes under 128, each extending to the end
    of the entry: so the sizes of a row differ from those of the first row by the same number.

    Returns:
        The name, the tag of the list, and the starts of the Features, the starts of their contents
        and the ends of both, ``int64[n]``; None if the entries have another form.
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
    expected = [size - name_bytes - 4, size - name_bytes - 6, size - name_bytes - 8]
    if first[sizes].tolist() != expected or tag not in KIND_OF_TAG:
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
        Starts and ends of the contents, ``int64[n]``, and ``bool[n]``: whether the field is there.
        Where it is not, the positions are arbitrary positions in ``data``.
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


# -- decoding --------------------------------------------------------------------------------------

DecodedColumn: TypeAlias = "NDArray[np.int64] | NDArray[np.float32] | list[Values | Unset | None]"
PlainColumn: TypeAlias = "DecodedColumn | SingleBlobs"

# Larger rows are decoded one by one: decoding them together copies them and gains nothing.
_MAX_DECODED_ROW_BYTES: Final = 1 << 14


def decode_columns(payloads: Sequence[bytes]) -> dict[str, DecodedColumn]:
    """Return a batch of Examples as columns.

    A column is an array if all rows have the feature with the same number kind and the same number
    of values k; otherwise, and for bytes, it is a list with one item per row.

    - ``int64[n, k]`` or ``float32[n, k]``, also with k = 0;
    - or a list of n items: ``int64[m]``, ``float32[m]`` or a list of bytes; **None if the feature
      is absent**; **`UNSET` if it is present with no kind**. (`decode_example` has no key for the
      former and None for the latter.)

    So ``encode_columns(decode_columns(payloads))`` returns the payloads if they have the
    form that shardwriter writes, except that an empty list of bytes needs the declared kind
    ``"bytes"``.

    Args:
        payloads: The payloads of n records.

    Returns:
        The columns by name; in the order of the first record, if the others have the same.

    Raises:
        WireError: A payload is not an Example; ``record_index`` is its index in ``payloads``.
    """
    found, plain = decode_plain_parts(payloads)
    rows = {}
    for row in np.flatnonzero(~plain).tolist():
        try:
            rows[row] = decode_example(payloads[row])
        except WireError as error:
            error.record_index = row
            raise
    return {
        name: column.in_lists() if isinstance(column, SingleBlobs) else column
        for name, column in to_columns(add_rows(found, rows), len(payloads)).items()
    }


def decode_plain_parts(
    payloads: Sequence[bytes],
) -> tuple[dict[str, Part], NDArray[np.bool_]]:
    """Return the rows of a batch that are certainly Examples, in the usual form.

    The result takes memory only for values that exist; columns of many features that few rows have
    would take memory for rows times features.

    Args:
        payloads: The payloads of n records, of any protos or none.

    Returns:
        By name, the rows that have a feature and its values; and ``bool[n]``: the rows that were
        decoded, each byte of which belongs to a known field. Other rows have no features here, and
        may or may not be Examples.
    """
    num_rows = len(payloads)
    if num_rows < 2 or sum(map(len, payloads)) > _MAX_DECODED_ROW_BYTES * num_rows:
        parts: dict[str, Part] = {}
        plain = np.zeros(num_rows, np.bool_)
    else:
        parts, plain = read_batch(payloads)
    rows = {}
    for row in np.flatnonzero(~plain).tolist():
        features = decode_plain_example(payloads[row])
        if features is not None:
            rows[row] = features
    if not plain.all():
        found = {name: _select_rows(part, plain) for name, part in parts.items()}
        parts = {name: part for name, part in found.items() if part.rows.size}
    plain[list(rows)] = True
    return add_rows(parts, rows), plain


def add_rows(
    parts: dict[str, Part], rows: Mapping[int, Mapping[str, Values | None]]
) -> dict[str, Part]:
    """Return the features of a batch with those of rows that were decoded one by one.

    Args:
        parts: The features of other rows.
        rows: The features of some rows, as from `decode_example`.
    """
    if not rows:
        return parts
    more: dict[str, tuple[list[int], list[Values | Unset | None]]] = {}
    for row, features in rows.items():
        for name, value in features.items():
            numbers, values = more.setdefault(name, ([], []))
            numbers.append(row)
            values.append(UNSET if value is None else value)
    joined = dict(parts)
    for name, (numbers, values) in more.items():
        part = joined.get(name)
        if part is None:
            joined[name] = Part(np.array(numbers, np.int64), _stack(values))
            continue
        every = np.concatenate([part.rows, np.array(numbers, np.int64)])
        cells = [*in_rows(part.cells), *values]
        order = np.argsort(every, kind="stable")
        joined[name] = Part(every[order], _stack([cells[i] for i in order.tolist()]))
    return joined


def to_columns(parts: Mapping[str, Part], num_rows: int) -> dict[str, PlainColumn]:
    """Return columns with one item per row: None if the row does not have the feature."""
    return {name: to_column(part, num_rows) for name, part in parts.items()}


def to_column(part: Part, num_rows: int) -> PlainColumn:
    """Return the column of one feature, with None for rows that do not have it."""
    rows, cells = part
    if rows.size == num_rows:
        return cells
    column: list[Values | Unset | None] = [None] * num_rows
    for row, cell in zip(rows.tolist(), in_rows(cells), strict=True):
        column[row] = cell
    return column


def _select_rows(part: Part, plain: NDArray[np.bool_]) -> Part:
    """Return a feature without the undefined cells of rows that were not decoded."""
    rows, cells = part
    valid = plain[rows]
    if valid.all():
        return part
    if isinstance(cells, np.ndarray):
        return Part(rows[valid], cells[valid])
    if isinstance(cells, SingleBlobs):
        return Part(rows[valid], SingleBlobs(compress(cells, valid.tolist())))
    return Part(rows[valid], list(compress(cells, valid.tolist())))


def _stack(values: list[Values | Unset | None]) -> DecodedColumn:
    """Return a column as an array if its rows are arrays of one dtype and length."""
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    if len(arrays) < len(values) or len({(a.dtype, a.size) for a in arrays}) != 1:
        return values
    stacked: Any = arrays[0][None] if len(arrays) == 1 else np.stack(arrays)
    return cast("DecodedColumn", stacked)


# -- encoding --------------------------------------------------------------------------------------

# Larger rows are encoded one by one, which needs less memory and is as fast.
_MAX_ROW_BYTES: Final = 1 << 16
_NO_VALUE: Final = frozenset({type(None), Unset})

# The bytes of a batch: lists with one item per row, to be joined by row.
_RowParts: TypeAlias = "list[Sequence[bytes]]"


class Column(NamedTuple):
    """The values of one feature in a batch of n rows.

    Attributes:
        values: An array ``[n, ...]``, or a sequence with a value for each row.
        unset: ``bool[n]``: the rows whose Feature has no kind; their ``values`` are ignored. None:
            only rows whose value is `UNSET`.
    """

    values: NDArray[Any] | Sequence[Any]
    unset: NDArray[np.bool_] | None = None


def encode_columns(
    columns: Mapping[str, Column | NDArray[Any] | Sequence[Any]],
    kinds: Mapping[str, Kind] | None = None,
    lost: list[str] | None = None,
) -> list[bytes]:
    """Return a batch of encoded Examples.

    Row ``i`` is byte for byte ``encode_example({name: column[i], ...}, kinds)``: None omits the
    feature from a row, `UNSET` writes a Feature with no kind.

    Args:
        columns: The values by name, all with the same number of rows.
        kinds: Declared kinds by name.
        lost: A list to which the names of columns are added whose numbers are inexact in float32.

    Returns:
        The payloads in row order; none if there are no columns.

    Raises:
        FeatureError: A name or value can not be stored in an Example (``feature`` and the message
            locate it), or the columns differ in length.
    """
    parts: _RowParts = []
    num_rows: int | None = None
    for name in sort_names(columns):
        kind = kinds.get(name) if kinds else None
        try:
            column = _as_column(columns[name])
            if num_rows is not None and len(column.values) != num_rows:
                raise FeatureError(f"{len(column.values)} rows, but {num_rows} in other columns")
            num_rows = len(column.values)
            parts += _encode_column(EntryHeads(name), column, kind)
            if lost is not None and PRECISION.has_lost:
                PRECISION.has_lost = False
                lost.append(name)
        except FeatureError as error:
            error.feature = name
            raise
    sizes = _SizePrefixes()
    return [sizes[len(body)] + body for body in map(b"".join, zip(*parts, strict=True))]


class _SizePrefixes(dict[int, bytes]):
    """A cache of ``0a <size>``, the bytes before the entries of a record; for one batch."""

    def __missing__(self, size: int) -> bytes:
        prefix = self[size] = b"\x0a" + encode_varint(size)
        return prefix


def _as_column(column: Column | NDArray[Any] | Sequence[Any]) -> Column:
    if not isinstance(column, Column):
        column = Column(column)
    values, unset = column
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        raise FeatureError(
            f"a column is of type {type(values).__name__}", hint="give an array or a list of rows"
        )
    if isinstance(values, np.ndarray) and values.ndim == 0:
        raise FeatureError("a column is a 0-d array", hint="give an array [rows, ...]")
    if unset is not None and (unset.shape != (len(values),) or unset.dtype != np.bool_):
        raise FeatureError(f"unset is {unset.dtype}{list(unset.shape)}, not bool[{len(values)}]")
    if isinstance(values, np.ndarray) and values.dtype == object and values.ndim == 1:
        values = values.tolist()  # as from pandas
    return Column(values, unset)


def _encode_column(heads: EntryHeads, column: Column, kind: Kind | None) -> _RowParts:
    values, unset = column
    if unset is not None and unset.any():
        present = ~unset
        if isinstance(values, np.ndarray):
            rest: NDArray[Any] | Sequence[Any] = values[present]
        else:
            rest = list(compress(values, present.tolist()))
        unset_entry = heads[len(UNSET_FEATURE)] + UNSET_FEATURE
        parts = _encode_column(heads, Column(rest), kind)
        return _spread(parts, present.tolist(), [unset_entry] * len(values))
    if isinstance(values, np.ndarray):
        return _encode_array_column(heads, values, kind)
    types = set(map(type, values))
    if types & _NO_VALUE and not types <= _NO_VALUE:
        present_rows = [type(value) not in _NO_VALUE for value in values]
        missing = _encode_rows(heads, [v if type(v) in _NO_VALUE else None for v in values], kind)
        known = [value for value in values if type(value) not in _NO_VALUE]
        return _spread(_encode_column(heads, Column(known), kind), present_rows, missing[0])
    if types <= {str, bytes} and kind in (None, "bytes"):
        return _encode_blob_column(heads, values)
    if types == {float} and kind in (None, "float"):
        return _encode_array_column(heads, np.array(values, np.float64), kind)
    if types and types <= {int, bool}:
        try:
            return _encode_array_column(heads, np.array(values, np.int64), kind)
        except OverflowError:
            pass  # _encode_rows finds the row
    return _encode_rows(heads, values, kind)


def _encode_rows(heads: EntryHeads, values: Sequence[Any], kind: Kind | None) -> _RowParts:
    """Return a column of any values, encoded one by one."""
    entries = []
    for row, value in enumerate(values):
        if value is None:
            entries.append(b"")
            continue
        try:
            encoded = encode_value(value, kind)
        except FeatureError as error:
            error.args = (f"{error.message} (row {row} of the batch)",)
            error.message = error.args[0]
            raise
        if isinstance(encoded, tuple):
            encoded = b"".join(encoded[1])
        entries.append(heads[len(encoded)] + encoded)
    return [entries]


def _encode_blob_column(heads: EntryHeads, values: Sequence[str | bytes]) -> _RowParts:
    try:
        blobs = [value.encode() if type(value) is str else as_blob(value) for value in values]
    except UnicodeEncodeError:
        return _encode_rows(heads, values, None)
    sizes = list(map(len, blobs))
    entry_heads = {}
    for size in set(sizes):
        head = blob_head(size)
        entry_heads[size] = heads[len(head) + size] + head
    return [[entry_heads[size] for size in sizes], blobs]


def _encode_array_column(heads: EntryHeads, values: NDArray[Any], kind: Kind | None) -> _RowParts:
    code = values.dtype.kind
    if kind == "float" and code in "iub":
        values, code = integers_as_float64(values), "f"
    num_rows = len(values)
    row_bytes = values[:1].size * 8
    plain = type(values) is np.ndarray and num_rows > 0 and row_bytes <= _MAX_ROW_BYTES
    try:
        if plain and code == "f" and kind in (None, "float"):
            floats = np.ascontiguousarray(as_float32(values)).reshape(num_rows, -1)
            return _fixed_size("float", heads, floats.view(np.uint8))
        if plain and code in "iub" and kind in (None, "int64"):
            return _encode_int_rows(heads, as_integers(values).reshape(num_rows, -1))
    except FeatureError:
        pass  # _encode_rows finds the row
    if code == "U" and values.ndim == 1 and kind in (None, "bytes"):
        return _encode_blob_column(heads, values.tolist())
    return _encode_rows(heads, list(values), kind)


def _encode_int_rows(heads: EntryHeads, values: NDArray[Any]) -> _RowParts:
    varints = encode_varints(values.reshape(-1))
    if varints.size == values.size:
        return _fixed_size("int64", heads, varints.reshape(values.shape))
    sizes = varint_sizes(values).sum(axis=1)
    entry_heads = {
        size: heads[len(packed_head("int64", size)) + size] + packed_head("int64", size)
        for size in set(sizes.tolist())
    }
    packed = varints.tobytes()
    bounds = [0, *np.cumsum(sizes).tolist()]
    bodies = [packed[start:end] for start, end in pairwise(bounds)]
    return [[entry_heads[size] for size in sizes.tolist()], bodies]


def _fixed_size(kind: Kind, heads: EntryHeads, packed: NDArray[np.uint8]) -> _RowParts:
    """Return rows of the same size, with packed numbers ``uint8[n, size]``."""
    size = packed.shape[1]
    head = packed_head(kind, size)
    head = heads[len(head) + size] + head
    entries = np.empty((len(packed), len(head) + size), np.uint8)
    entries[:, : len(head)] = np.frombuffer(head, np.uint8)
    entries[:, len(head) :] = packed
    # A view as void scalars is the fastest way to many bytes objects of one length.
    return [entries.view(f"V{entries.shape[1]}").reshape(-1).tolist()]


def _spread(parts: _RowParts, present: Sequence[bool], others: Sequence[bytes]) -> _RowParts:
    """Return the parts of all rows: ``parts`` for the present rows, ``others`` for the rest."""
    spread: _RowParts = []
    for part in parts:
        items = iter(part)
        spread.append([next(items) if is_present else b"" for is_present in present])
    spread.append([b"" if p else other for p, other in zip(present, others, strict=True)])
    return spread
