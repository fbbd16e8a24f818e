"""What the programs for all frameworks begin with."""

from __future__ import annotations

from collections.abc import Sequence

from shardwriter.reading.loader_code.facts import Facts, Field
from shardwriter.reading.loader_code.text import collection, comment, quoted

MAX_CLASSES = 200  # whose names are printed
IMAGE_SIZE = "IMAGE_SIZE = (224, 224)  # height and width that pictures are resized to"


def opening(facts: Facts, reader: str, needs: str, *, has_defaults: bool = True) -> list[str]:
    """Return the comment at the top: what is read, with what, and what is not known.

    Args:
        facts: The dataset.
        reader: What reads it.
        needs: What has to be installed.
        has_defaults: Whether the program has a value for a feature that a record lacks.
    """
    records = "1 record" if facts.num_records == 1 else f"{facts.num_records:,} records"
    shards = "1 shard" if len(facts.files) == 1 else f"{len(facts.files):,} shards"
    packed = "" if facts.compression == "none" else f" {facts.compression}"
    shards = shards.replace(" ", f"{packed} ", 1)
    lines = comment(f"Reads {quoted(facts.path)} with {reader}: {records} in {shards}.")
    lines += comment(f"Needs {needs}.")
    if not facts.is_told:
        lines += comment(_where_types_come_from(facts, has_defaults))
    for name in facts.never_set:
        lines += comment(f"{quoted(name)} is left out: no record has a value of it.")
    return lines


def _where_types_come_from(facts: Facts, has_defaults: bool) -> str:
    if not facts.is_sample:
        return "No manifest tells types and shapes: they are those of all of its records."
    then = "it gets a default" if has_defaults else "the reader fails, or reads 0 for a number"
    return (
        f"No manifest tells types and shapes. Only the first {facts.num_counted:,} records were "
        f"read to find them: where a later record lacks a feature, {then}; features that only "
        f"later records have are left out. --records {facts.num_records} reads all of them."
    )


def files(facts: Facts) -> list[str]:
    """Return ``FILES = ...``: all shards in their order, and no others that lie beside them."""
    lines = comment("Seen from the folder in which this runs. Their order is that of the shards.")
    if facts.numbered is None:
        return lines + collection("FILES = [", list(map(quoted, facts.files)), "]")
    prefix, suffix, width = facts.numbered
    # In an f-string braces are doubled; the number is put in between.
    name = quoted(_doubled(prefix) + f"{{i:0{width}d}}" + _doubled(suffix))
    listed = f"f{name} for i in range({len(facts.files)})"
    if len(listed) + len("FILES = []") <= 88:
        return [*lines, f"FILES = [{listed}]"]
    if len(listed) + 4 <= 88:
        return [*lines, "FILES = [", f"    {listed}", "]"]
    return [*lines, "FILES = [", f"    f{name}", f"    for i in range({len(facts.files)})", "]"]


def _doubled(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def class_names(fields: Sequence[Field]) -> list[str]:
    """Return ``CLASS_NAMES = ...``, by feature; nothing where there are none."""
    known = [field for field in fields if field.vocabulary]
    if not known:
        return []
    lines = [*comment("What the numbers of a class stand for."), "CLASS_NAMES = {"]
    for field in known:
        head = f"{quoted(field.name)}: ["
        names = field.vocabulary[:MAX_CLASSES]
        lines += collection(head, list(map(quoted, names)), "],", indent=1)
        more = len(field.vocabulary) - len(names)
        if more:
            lines += comment(f"{more:,} more are in the manifest, in its schema.", indent=1)
    return [*lines, "}"]


def why_absent(field: Field, num_counted: int) -> str:
    """Say how many records have no value of an optional feature."""
    return f"{field.num_missing:,} of {num_counted:,} records have no value"
