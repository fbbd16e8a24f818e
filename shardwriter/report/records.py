"""Records and schemas as tables, and a record as JSON."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from rich.table import Table
from rich.text import Text

from shardwriter.formats import clean, feature_spelling, list_spelling
from shardwriter.reading import KnownSchema, ShownRecord
from shardwriter.report.render import bytes_text, make_console, max_cells, plural, shorten
from shardwriter.schema import FeatureSummary

_MAX_CLASSES: Final = 4
_CLASS_CELLS: Final = 14


def print_schema(known: KnownSchema) -> None:
    """Print a table with a row for each feature.

    For SequenceExamples these are the features of the context, then the feature lists as
    ``NAME[]``, with the types of a step.
    """
    lists = known.feature_lists or {}
    summaries = {feature_spelling(name): known.features[name] for name in sorted(known.features)}
    summaries |= {list_spelling(name): lists[name] for name in sorted(lists)}
    console = make_console()
    table = Table(box=None, pad_edge=False)
    table.add_column("feature", overflow="fold")
    table.add_column("type", overflow="fold")
    table.add_column("shape", no_wrap=True)
    table.add_column("encoding")
    for name in ("present", "unset"):
        table.add_column(name, justify="right")
    has_classes = any(summary.vocabulary for summary in summaries.values())
    class_cells = max_cells(console, _CLASS_CELLS)
    if has_classes:
        table.add_column("classes", overflow="fold")
    for name, summary in summaries.items():
        row = [
            clean(name),
            _type_text(summary),
            _shape_text(summary),
            _encoding_text(summary),
            f"{summary.present:,}",
            f"{summary.unset:,}" if summary.unset else "",
        ]
        if has_classes:
            row.append(_classes_text(summary.vocabulary or [], class_cells))
        table.add_row(*map(Text, row))
    if summaries:
        console.print(table)
    found = plural(len(known.features), "feature")
    if known.feature_lists is not None:
        found = f"{found} and {plural(len(lists), 'feature list')}"
    console.print(Text(f"{found} of {plural(known.num_records, 'record')}"))


def _type_text(summary: FeatureSummary) -> str:
    return clean(summary.type.dtype or summary.type.kind or "never set")


def _shape_text(summary: FeatureSummary) -> str:
    shape = summary.type.shape
    if shape is None:
        return "" if summary.type.kind is None else "any"
    return "scalar" if not shape else str(["*" if n is None else n for n in shape]).replace("'", "")


def _encoding_text(summary: FeatureSummary) -> str:
    if summary.type.encoding == "image":
        found = summary.type.format
        return "image" if found in (None, "image") else clean(f"image {found}")
    return "" if summary.type.kind is None else summary.type.encoding


def _classes_text(names: list[str], num_cells: int) -> str:
    if not names:
        return ""
    first = ", ".join(shorten(name, num_cells) for name in names[:_MAX_CLASSES])
    more = ", ..." if len(names) > _MAX_CLASSES else ""
    return f"{len(names):,}: {first}{more}"


_MAX_VALUES: Final = 8


def print_record(record: ShownRecord) -> None:
    """Print one record with its features."""
    console = make_console()
    console.print(
        Text(
            f"record {record.index:,}  {clean(record.path)} [{record.record_index:,}]  "
            f"{bytes_text(record.payload_bytes)}  {record.kind}",
            style="bold",
        )
    )
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 1))
    is_sequence = record.kind == "SequenceExample"
    for name in sorted(record.features):
        spelling = feature_spelling(name) if is_sequence else name
        kind, text = _value_text(record.features[name])
        table.add_row(Text(clean(spelling)), kind, Text(text))
    for name in sorted(record.feature_lists):
        steps = record.feature_lists[name]
        for number, step in enumerate(steps[:_MAX_VALUES]):
            kind, text = _value_text(step)
            table.add_row(Text(clean(f"{list_spelling(name)} step {number}")), kind, Text(text))
        if len(steps) > _MAX_VALUES or not steps:
            table.add_row(Text(clean(list_spelling(name))), f"{len(steps):,} steps", Text(""))
    console.print(table)


def _value_text(value: Any) -> tuple[str, str]:
    """Return a value's kind with its size, and its first elements."""
    if value is None:
        return "unset", ""
    if isinstance(value, np.ndarray):
        # Lists of an Example are int64 or float32; other arrays were stored as raw bytes.
        kind = {"int64": "int64", "float32": "float"}.get(value.dtype.name, value.dtype.name)
        count, sizes = value.size, ",".join(map(str, value.shape))
        parts = [str(v) for v in value.reshape(-1)[:_MAX_VALUES]]  # str, for all significant digits
    else:
        kind, count, sizes = "bytes", len(value), str(len(value))
        parts = [_bytes_value(v) for v in value[:_MAX_VALUES]]
    more = ", ..." if count > _MAX_VALUES else ""
    return f"{kind}[{sizes}]", ", ".join(parts) + more


def _bytes_value(value: bytes) -> str:
    from shardwriter.formats import image_format

    found = image_format(value[:16])
    if found is not None:
        return f"{found} image, {bytes_text(len(value))}"
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and (text or not value):
        return repr(text if len(text) <= 60 else text[:57] + "...")
    return f"{value[:12].hex(' ')}{' ...' if len(value) > 12 else ''} ({bytes_text(len(value))})"


def record_json(record: ShownRecord) -> dict[str, Any]:
    """Return a record as JSON; bytes that are not UTF-8 text become ``{"base64": ...}``.

    ``features`` of a SequenceExample are those of its context.
    """
    lists = {
        name: [_json_value(step) for step in steps] for name, steps in record.feature_lists.items()
    }
    return {
        **({"feature_lists": lists} if record.kind == "SequenceExample" else {}),
        "features": {name: _json_value(value) for name, value in record.features.items()},
        "index": record.index,
        "kind": record.kind,
        "path": record.path,
        "payload_bytes": record.payload_bytes,
        "record_index": record.record_index,
    }


def _json_value(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        return _json_numbers(value.tolist())
    return [_json_bytes(v) for v in value]


def _json_numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_numbers(v) for v in value]
    # JSON has no NaN, infinity or complex numbers: they become text.
    return value if np.isfinite(value) and not isinstance(value, complex) else str(value)


def _json_bytes(value: bytes) -> Any:
    from base64 import b64encode

    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode("ascii")}
