"""The features of a dataset as a table for people."""

from __future__ import annotations

from typing import Final

from rich.table import Table
from rich.text import Text

from shardwriter.formats.sequence_names import feature_spelling, list_spelling
from shardwriter.formats.text import clean
from shardwriter.reading.known_schema import KnownSchema
from shardwriter.report.render import make_console, max_cells, plural, shorten
from shardwriter.schema.schema import FeatureSummary

_MAX_CLASSES: Final = 4
_CLASS_CELLS: Final = 14


def print_schema(known: KnownSchema) -> None:
    """Print a row for each feature: all of them, as ``--json`` has them.

    Of SequenceExamples these are the features of the context, then the feature lists as ``NAME[]``,
    whose types are those of a step.
    """
    lists = known.feature_lists or {}
    told = {feature_spelling(name): known.features[name] for name in sorted(known.features)}
    told |= {list_spelling(name): lists[name] for name in sorted(lists)}
    console = make_console()
    table = Table(box=None, pad_edge=False)
    table.add_column("feature", overflow="fold")
    table.add_column("type", overflow="fold")
    table.add_column("shape", no_wrap=True)
    table.add_column("encoding")
    for name in ("present", "unset"):
        table.add_column(name, justify="right")
    has_classes = any(summary.vocabulary for summary in told.values())
    class_cells = max_cells(console, _CLASS_CELLS)
    if has_classes:
        table.add_column("classes", overflow="fold")
    for name, summary in told.items():
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
    if told:
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
    some = ", ".join(shorten(name, num_cells) for name in names[:_MAX_CLASSES])
    more = ", ..." if len(names) > _MAX_CLASSES else ""
    return f"{len(names):,}: {some}{more}"
