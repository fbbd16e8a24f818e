"""What a record looks like: as a table for people, as JSON for programs."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from rich.table import Table
from rich.text import Text

from shardwriter.render import bytes_text, clean, make_console
from shardwriter.show import ShownRecord

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
    for name in sorted(record.features):
        kind, count, text = _value_text(record.features[name])
        table.add_row(
            Text(clean(name)), f"{kind}[{count}]" if kind != "unset" else kind, Text(text)
        )
    console.print(table)


def _value_text(value: Any) -> tuple[str, int, str]:
    if value is None:
        return "unset", 0, ""
    if isinstance(value, np.ndarray):
        kind = "int64" if value.dtype.kind == "i" else "float"
        parts = [f"{v:g}" if kind == "float" else str(v) for v in value[:_MAX_VALUES].tolist()]
    else:
        kind = "bytes"
        parts = [_bytes_value(v) for v in value[:_MAX_VALUES]]
    more = ", ..." if len(value) > _MAX_VALUES else ""
    return kind, len(value), ", ".join(parts) + more


def _bytes_value(value: bytes) -> str:
    from shardwriter.images.headers import image_format

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
    """Return a record as JSON; bytes that are no UTF-8 text become ``{"base64": ...}``."""
    return {
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
        # JSON has no NaN or infinity: they travel as text.
        return [v if np.isfinite(v) else str(v) for v in value.tolist()]
    return [_json_bytes(v) for v in value]


def _json_bytes(value: bytes) -> Any:
    from base64 import b64encode

    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode("ascii")}
