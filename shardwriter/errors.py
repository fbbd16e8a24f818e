"""The error tree: one class for each broken rule, with the facts as fields.

::

    ShardwriterError
    |-- UsageError              exit 2: the command or call can not be carried out as asked
    |   |-- OptionError         an option, name or callable is wrong, or contradicts another
    |   |-- OutputExists        a finished or unfinished dataset of this name is there
    |   |-- OutputBusy          another process is writing this dataset right now
    |   |-- UnequalSteps        ranks would take different numbers of steps, and hang
    |   `-- RunChanged          a run can not be resumed: source, options or code are others now
    |-- DataError               exit 1: the data is at fault
    |   |-- SourceError         an input is missing, empty or malformed
    |   |   `-- SourceChanged   it is not what it was when it was listed
    |   |-- FeatureError        a value has no place in a tf.train.Example
    |   |-- SchemaConflict      a feature changes its type between two items
    |   |-- RecordTooLarge      a record is over the 2 GiB that protobuf can parse
    |   |-- WireError           bytes that are not a well-formed tf.train.Example
    |   |-- CorruptFile         framing, checksums or compression of a file are broken
    |   |-- ManifestError       a manifest or index is malformed, or contradicts the files
    |   |-- AssignmentError        shard lengths are not what the round-robin law gives
    |   |-- CallableError       the user's own code raised on an item
    |   `-- TooManyErrors       more items gave an error than are allowed
    `-- RunError                exit 3: the work could not be done here
        |-- StorageError        the file system said no (full, read-only, no permission)
        |-- OutOfMemory         a record, or what is made of it, does not fit into memory
        |-- WorkerDied          a process of the pool ended that should not have
        |-- ItemTimeout         an item took longer than it may
        `-- MissingExtra        an optional package is needed and absent

Every error says *what* (the message), *where* (the fields that are set) and *what to do next*
(``hint``). ``str(error)`` is all three of them for Python; the commands print ``summary`` and
``hint``, which are in their words. Errors are picklable: they survive a process border whole.
"""

from __future__ import annotations

import copyreg
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Final

# Messages are written in the words of the command; here they are said in those of Python.
#
# ``use --on-error skip`` becomes ``use on_error="skip"``. Errors and warnings keep the words of the
# command, which prints them, and use this where Python shows them.


def _run(name: str) -> tuple[str, str]:
    return f"{name}= of sw.RunOptions", f"run=sw.RunOptions({name}={{}})"


def _image(name: str) -> tuple[str, str]:
    return f"{name}=", f"images=sw.ImageOptions({name}={{}})"


def _plain(name: str) -> tuple[str, str]:
    return f"{name}=", f"{name}={{}}"


FLAGS: Final[Mapping[str, str]] = {
    "--retry-errors --accept-changed-map": (
        "run=sw.RunOptions(retry_errors=True, accept_changed_map=True)"
    ),
    "--accept-changed-map": "run=sw.RunOptions(accept_changed_map=True)",
    "--allow-duplicates": "allow_duplicates=True",
    "--dry-run": "dry_run=True",
    "--no-header": "header=False",
    "--strict": "strict=True",
    "--index": "run=sw.RunOptions(dali_index=True)",
    "--overwrite": "overwrite=True",
    "--resume": "resume=True",
    "--retry-errors": "run=sw.RunOptions(retry_errors=True)",
    "--trust-no-crc": "trust_no_crc=True",
}
"""What stands in Python for a flag that takes no value."""

OPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "--backend": _run("backend"),
    "--columns": _plain("columns"),
    "--compression": _plain("compression"),
    "--deflate": _plain("deflate"),
    "--drop-columns": _plain("drop_columns"),
    "--encoding": _plain("encoding"),
    "--engine": _run("engine"),
    "--filter": _plain("filter"),
    "--format": _plain("format"),
    "--indices": _plain("indices"),
    "--item-timeout": _run("item_timeout_s"),
    "--key": _plain("key"),
    "--label": _plain("label"),
    "--limit": _plain("limit"),
    "--loader-workers": _plain("loader_workers"),
    "--log-dir": _run("log_dir"),
    "--map": _plain("map"),
    "--max-errors": _run("max_errors"),
    "--max-side": _image("max_side"),
    "--na": _plain("na"),
    "--names": _plain("names"),
    "--on-error": _plain("on_error"),
    "--order": _plain("order"),
    "--quality": _image("quality"),
    "--resize": _image("resize"),
    "--schema": _plain("schema"),
    "--seed": _plain("order_seed"),
    "--shards": _plain("num_shards"),
    "--shuffle --seed": _plain("shuffle_seed"),
    "--shuffle or --seed": _plain("shuffle_seed"),
    "--shuffle": _plain("shuffle_seed"),
    "--source": _plain("source"),
    "--split": ("split= of sw.write_splits", "sw.write_splits(..., split={})"),
    "--tfds": _plain("tfds"),
    "--workers": _plain("workers"),
    "--world": _plain("world"),
}
"""What stands for one that takes a value: alone, and with its value."""

_TEXTS: Final[Mapping[str, str]] = {
    "(-j)": "(workers=)",
    "shown with -v": "shown above",  # Python prints causes by itself
}

# A word behind a flag is its value where it can be nothing else: a number, something quoted, with
# an equals sign or commas, a placeholder in capitals, a word that the options know, what stands
# before a colon.
_VALUE: Final = (
    r"(?P<value>\d+(?![\w.])|'[^']*'|\"[^\"]*\"|[^\s=]+=[^\s;)`]*[^\s;)`:,.]"
    r"|[A-Z][A-Z_]*(?![\w:])|\w+(?:,\w+)+"
    r"|(?:none|gzip|zlib|isal-2|zlib-6|serial|process|native|tensorflow|skip|raise|key|source"
    r"|image-folder|image-mask|coco|voc|csv|jsonl|parquet|numpy|tfrecord|webdataset|audio|python"
    r"|huggingface)(?![\w-])|(?!off:)\S+?(?=: ))"
)


def python_words(text: str) -> str:
    """Return a message or hint in which options of the command are those of Python.

    Commands in backquotes stay, as they are what is to be typed in a terminal; but one that says
    nothing but options of `shardwriter write` is a call.

    Args:
        text: What was written for the command.
    """
    for said, in_python in _TEXTS.items():
        text = text.replace(said, in_python)
    return _commands().sub(_said, text) if "--" in text else text


@cache
def _commands() -> re.Pattern[str]:
    return re.compile(r"`shardwriter write(?P<flags>(?: --[^`]+))`|`[^`]*`|" + _flags().pattern)


@cache
def _flags() -> re.Pattern[str]:
    switches = "|".join(map(re.escape, FLAGS))
    options = "|".join(map(re.escape, sorted(OPTIONS, key=len, reverse=True)))
    end = r"(?![\w-])"
    return re.compile(
        rf"(?P<switch>{switches}){end}|(?P<option>{options}){end}(?: {_VALUE})?(?P<colon>(?=:))?"
    )


def _said(found: re.Match[str]) -> str:
    if found["switch"] is not None:
        return FLAGS[found["switch"]]
    if found["option"] is not None:
        return _option(found)
    flags = found["flags"]
    if flags is None:
        return found[0]
    return f"`sw.write(..., {', '.join(_said(each) for each in _flags().finditer(flags))})`"


def _option(found: re.Match[str]) -> str:
    alone, template = OPTIONS[found["option"]]
    value = found["value"]
    if value is not None:
        return template.format(value if value[0] in "'\"" or value.isdigit() else f'"{value}"')
    return alone if found["colon"] is None else alone.partition("=")[0]


class ShardwriterError(Exception):
    """Base of all errors that shardwriter raises on purpose.

    Attributes:
        message: What is wrong, in a sentence.
        hint: What to do next, or None.
        path: The file or folder concerned.
        line: 1-based line number in a text file.
        index: 0-based index of the item in source order.
        item: The item's key (a relative path, a row number).
        record_index: 0-based index of a record inside its file.
        offset: Byte offset in the (uncompressed) stream of a file.
        feature: Name of the feature.
        shard: 0-based number of the shard.
        worker: The process where it happened, in words; None for this one.
    """

    exit_code: ClassVar[int] = 3

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        path: str | None = None,
        line: int | None = None,
        index: int | None = None,
        item: str | None = None,
        record_index: int | None = None,
        offset: int | None = None,
        feature: str | None = None,
        shard: int | None = None,
        worker: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.path = path
        self.line = line
        self.index = index
        self.item = item
        self.record_index = record_index
        self.offset = offset
        self.feature = feature
        self.shard = shard
        self.worker = worker

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own __reduce__ would lose keyword arguments; the fields travel as state.
        # ImportError keeps `path` in a slot of its own, outside of __dict__.
        state = {**self.__dict__, "path": self.path}
        return copyreg.__newobj__, (type(self), self.message), state  # type: ignore[attr-defined]

    @property
    def where(self) -> str:
        """The fields that say where, as one phrase; empty when none is set."""
        parts = []
        if self.path is not None:
            parts.append(self.path if self.line is None else f"{self.path}, line {self.line}")
        elif self.line is not None:
            parts.append(f"line {self.line}")
        if self.index is not None:
            parts.append(f"item {self.index}")
        if self.item is not None and not (self.path or "").endswith(self.item):
            parts.append(repr(self.item))
        if self.record_index is not None:
            parts.append(f"record {self.record_index}")
        if self.offset is not None:
            parts.append(f"offset {self.offset}")
        if self.feature is not None:
            parts.append(f"feature {self.feature!r}")
        if self.shard is not None:
            parts.append(f"shard {self.shard}")
        if self.worker is not None:
            parts.append(self.worker)
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return what and where as JSON, without what differs between two machines."""
        told = {"error": type(self).__name__, "message": self.message}
        fields = ("path", "line", "index", "item", "record_index", "offset", "feature")
        where = {name: getattr(self, name) for name in fields}
        if self.item is not None and (self.path or "").endswith(self.item):
            del where["path"]  # it is spelled as the source was
        return {**told, **{name: value for name, value in where.items() if value is not None}}

    def locate(self, *, index: int | None = None, item: str | None = None) -> ShardwriterError:
        """Fill in where it happened, if that is not known yet, and return self."""
        if self.index is None:
            self.index = index
        if self.item is None:
            self.item = item
        return self

    @property
    def summary(self) -> str:
        """Where and what, in the words of the command; without what to do."""
        return f"{self.where}: {self.message}" if self.where else self.message

    def __str__(self) -> str:
        """Return where, what and what to do, in the words of Python: the end of a traceback."""
        return python_words(_with_hint(self.summary, self.hint))


def _with_hint(text: str, hint: str | None) -> str:
    return text if not hint else f"{text}\n  hint: {hint}"


def reason(error: BaseException) -> str:
    """Return what an error says, as a part of another one's message."""
    return error.summary if isinstance(error, ShardwriterError) else str(error)


class UsageError(ShardwriterError):
    """The command or call can not be carried out as asked."""

    exit_code = 2


class OptionError(UsageError, ValueError):
    """An option, name or callable is wrong, or contradicts another."""


class OutputExists(UsageError):
    """A finished or unfinished dataset of this name is there already."""


class OutputBusy(UsageError):
    """Another process is writing this dataset right now."""


class RunChanged(UsageError):
    """A run can not be resumed: the source, an option that decides bytes, or code has changed."""


class UnequalSteps(UsageError, ValueError):
    """The records do not divide by the ranks, and nobody said what to do then.

    Attributes:
        num_records: How many were to be divided; None where that is not the fault.
        world: By how many ranks.
    """

    def __init__(
        self,
        message: str,
        *,
        num_records: int | None = None,
        world: int | None = None,
        **where: Any,
    ) -> None:
        super().__init__(message, **where)
        self.num_records = num_records
        self.world = world


class DataError(ShardwriterError):
    """The data is at fault."""

    exit_code = 1


class SourceError(DataError):
    """An input is missing, empty or malformed."""


class SourceChanged(SourceError):
    """An input is not what it was when it was listed, so that no order of items can be trusted."""


class FeatureError(DataError, ValueError):
    """A value has no place in a tf.train.Example, or not the place that the plan gives it."""


class SchemaConflict(DataError):
    """A feature changes its type between two items."""


class RecordTooLarge(DataError):
    """A record is over the 2 GiB that protobuf can parse."""


class WireError(DataError, ValueError):
    """Bytes that are not a well-formed tf.train.Example."""


class CorruptFile(DataError):
    """Framing, checksums or compression of a file are broken.

    ``kind`` names the defect as ``shard-stats`` does.
    """

    def __init__(self, message: str, *, kind: str = "corrupt", **where: Any) -> None:
        super().__init__(message, **where)
        self.kind = kind


class ManifestError(DataError):
    """A manifest or index is malformed, or contradicts the files."""


class AssignmentError(DataError):
    """Shard lengths are not what the round-robin law gives."""


class CallableError(DataError):
    """The user's own code (a map, a source) raised on an item; the original is ``__cause__``."""


class TooManyErrors(DataError):
    """More items gave an error than are allowed."""


class RunError(ShardwriterError):
    """The work could not be done here."""


class StorageError(RunError):
    """The file system said no: full, read-only, no permission."""


class OutOfMemory(RunError):
    """A record, or what is made of it, does not fit into the memory that there is."""


class WorkerDied(RunError):
    """A process of the pool ended that should not have: killed, crashed, or by its own will."""


class ItemTimeout(RunError):
    """An item took longer than it may."""


class MissingExtra(RunError, ImportError):
    """An optional package is needed and absent."""


class ShardwriterWarning(UserWarning):
    """Something that a person should know, though the work goes on.

    In Python it is issued through :mod:`warnings`; the commands print it on stderr.
    """


class DataWarning(ShardwriterWarning):
    """Data was read or stored in a way that may not be meant; ``strict`` makes it an error.

    There is one for each feature and code, for the first item that it concerns.

    Attributes:
        code: What it is, for programs: ``float-precision``, ``text-column``.
        message: What has happened, in a sentence, with both values where one has changed.
        hint: What to type to keep the value; None where there is nothing to do.
        feature: Name of the feature or column; None where it concerns no single one.
        path: The file concerned, as far as it is known.
        line: 1-based line in a text file.
        index: 0-based index of the first such item in source order.
        value: The value in the source, as text.
        stored: What the record has in its place, as text.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        feature: str | None = None,
        path: str | None = None,
        line: int | None = None,
        index: int | None = None,
        value: str | None = None,
        stored: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.feature = feature
        self.path = path
        self.line = line
        self.index = index
        self.value = value
        self.stored = stored

    def __str__(self) -> str:
        """Return what and what to do, in the words of Python."""
        return python_words(_with_hint(self.message, self.hint))

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self), self.message), self.__dict__  # type: ignore[attr-defined]
