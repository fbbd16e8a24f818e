"""The errors and warnings that shardwriter raises on purpose, with their facts as fields.

::

    ShardwriterError
    |-- UsageError              exit 2: the command or call can not be carried out as asked
    |   |-- OptionError         an option, name or callable is wrong, or contradicts another
    |   |-- OutputExists        a finished or unfinished dataset of this name exists
    |   |-- OutputBusy          another process is writing this dataset
    |   |-- UnequalSteps        ranks would take different numbers of steps, and hang
    |   `-- RunChanged          a run can not be resumed: source, options or code have changed
    |-- DataError               exit 1: the data is at fault
    |   |-- SourceError         an input is missing, empty or malformed
    |   |   `-- SourceChanged   an input has changed since it was listed
    |   |-- FeatureError        a value can not be stored in a tf.train.Example
    |   |-- SchemaConflict      a feature has different types in two items
    |   |-- RecordTooLarge      a record exceeds the 2 GiB that protobuf can parse
    |   |-- WireError           bytes that are not a well-formed tf.train.Example
    |   |-- CorruptFile         framing, checksums or compression of a file are broken
    |   |-- ManifestError       a manifest or index is malformed, or contradicts the files
    |   |-- AssignmentError     shard lengths do not follow the round-robin assignment
    |   |-- CallableError       the user's own code raised on an item
    |   `-- TooManyErrors       more items gave an error than are allowed
    `-- RunError                exit 3: this machine could not do the work
        |-- StorageError        the file system refused: full, read-only, no permission
        |-- OutOfMemory         a record, or its decoded form, does not fit into memory
        |-- WorkerDied          a worker process ended unexpectedly
        |-- ItemTimeout         an item took longer than --item-timeout
        `-- MissingExtra        an optional package is not installed

Every error has a message (what is wrong), fields that locate it (path, line, item, ...) and an
optional ``hint`` (what to do next). Messages are written with the options of the command line
(``--overwrite``); ``str(error)`` shows Python's (``overwrite=True``), see :func:`python_words`.
Errors can be pickled with all their fields.
"""

from __future__ import annotations

import copyreg
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Final


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
        worker: The worker process where it happened, as text; None for this process.
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
        """The location as one phrase, such as ``a.csv, line 4``; empty if no field is set."""
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
        """Return message and location as JSON, without facts that differ between machines."""
        entry = {"error": type(self).__name__, "message": self.message}
        fields = ("path", "line", "index", "item", "record_index", "offset", "feature")
        where = {name: getattr(self, name) for name in fields}
        if self.item is not None and (self.path or "").endswith(self.item):
            del where["path"]  # depends on how the source was spelled
        return {**entry, **{name: value for name, value in where.items() if value is not None}}

    def locate(self, *, index: int | None = None, item: str | None = None) -> ShardwriterError:
        """Fill in index and item where they are not set yet, and return self."""
        if self.index is None:
            self.index = index
        if self.item is None:
            self.item = item
        return self

    @property
    def summary(self) -> str:
        """Location and message, with command-line options; without the hint."""
        return f"{self.where}: {self.message}" if self.where else self.message

    def __str__(self) -> str:
        """Return location, message and hint, with Python arguments: the end of a traceback."""
        return python_words(_with_hint(self.summary, self.hint))


def _with_hint(text: str, hint: str | None) -> str:
    return text if not hint else f"{text}\n  hint: {hint}"


def reason(error: BaseException) -> str:
    """Return the text of an error, for use inside another message."""
    return error.summary if isinstance(error, ShardwriterError) else str(error)


class UsageError(ShardwriterError):
    """The command or call can not be carried out as asked."""

    exit_code = 2


class OptionError(UsageError, ValueError):
    """An option, name or callable is wrong, or contradicts another."""


class OutputExists(UsageError):
    """A finished or unfinished dataset of this name exists already."""


class OutputBusy(UsageError):
    """Another process is writing this dataset."""


class RunChanged(UsageError):
    """A run can not be resumed: the source, an option that decides bytes, or code has changed."""


class UnequalSteps(UsageError, ValueError):
    """The records do not divide evenly by the ranks, and no policy was chosen.

    Attributes:
        num_records: The records to divide; None if another number is at fault.
        world: The number of ranks.
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
    """An input has changed since it was listed, so the order of items is no longer reliable."""


class FeatureError(DataError, ValueError):
    """A value can not be stored in a tf.train.Example, or contradicts the declared schema."""


class SchemaConflict(DataError):
    """A feature has different types in two items."""


class RecordTooLarge(DataError):
    """A record exceeds the 2 GiB that protobuf can parse."""


class WireError(DataError, ValueError):
    """Bytes that are not a well-formed tf.train.Example."""


class CorruptFile(DataError):
    """Framing, checksums or compression of a file are broken.

    Attributes:
        kind: The defect, as ``shard-stats`` names it.
    """

    def __init__(self, message: str, *, kind: str = "corrupt", **where: Any) -> None:
        super().__init__(message, **where)
        self.kind = kind


class ManifestError(DataError):
    """A manifest or index is malformed, or contradicts the files."""


class AssignmentError(DataError):
    """Shard lengths do not follow the round-robin assignment."""


class CallableError(DataError):
    """The user's own code (a map, a source) raised on an item; ``__cause__`` is its error."""


class TooManyErrors(DataError):
    """More items gave an error than are allowed."""


class RunError(ShardwriterError):
    """This machine could not do the work."""


class StorageError(RunError):
    """The file system refused: full, read-only, no permission."""


class OutOfMemory(RunError):
    """A record, or its decoded form, does not fit into memory."""


class WorkerDied(RunError):
    """A worker process ended unexpectedly: it was killed, crashed, or exited by itself."""


class ItemTimeout(RunError):
    """An item took longer than ``--item-timeout``."""


class MissingExtra(RunError, ImportError):
    """An optional package is not installed."""


class ShardwriterWarning(UserWarning):
    """Something the user should know that does not stop the work.

    Python issues it through :mod:`warnings`; the commands print it on stderr.
    """


class DataWarning(ShardwriterWarning):
    """Data was read or stored in a way that may not be intended; ``strict`` makes it an error.

    There is one warning per feature and code, for the first item concerned.

    Attributes:
        code: Name of the problem, for programs: ``float-precision``, ``text-column``.
        message: What happened, in a sentence, with both values if one changed.
        hint: What to type to keep the value; None if there is nothing to do.
        feature: Name of the feature or column; None if it concerns no single one.
        path: The file concerned, if known.
        line: 1-based line in a text file.
        index: 0-based index of the first such item in source order.
        value: The value in the source, as text.
        stored: The value in the record, as text.
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
        """Return message and hint, with Python arguments."""
        return python_words(_with_hint(self.message, self.hint))

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self), self.message), self.__dict__  # type: ignore[attr-defined]


# -- options of the command line as Python arguments -----------------------------------------------


def _run_option(name: str) -> tuple[str, str]:
    return f"{name}= of sw.RunOptions", f"run=sw.RunOptions({name}={{}})"


def _image_option(name: str) -> tuple[str, str]:
    return f"{name}=", f"images=sw.ImageOptions({name}={{}})"


def _argument(name: str) -> tuple[str, str]:
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
"""Python for each option that takes no value."""

OPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "--backend": _run_option("backend"),
    "--columns": _argument("columns"),
    "--compression": _argument("compression"),
    "--deflate": _argument("deflate"),
    "--drop-columns": _argument("drop_columns"),
    "--encoding": _argument("encoding"),
    "--engine": _run_option("engine"),
    "--filter": _argument("filter"),
    "--format": _argument("format"),
    "--indices": _argument("indices"),
    "--item-timeout": _run_option("item_timeout_s"),
    "--key": _argument("key"),
    "--label": _argument("label"),
    "--limit": _argument("limit"),
    "--loader-workers": _argument("loader_workers"),
    "--log-dir": _run_option("log_dir"),
    "--map": _argument("map"),
    "--max-errors": _run_option("max_errors"),
    "--max-side": _image_option("max_side"),
    "--na": _argument("na"),
    "--names": _argument("names"),
    "--on-error": _argument("on_error"),
    "--order": _argument("order"),
    "--quality": _image_option("quality"),
    "--resize": _image_option("resize"),
    "--schema": _argument("schema"),
    "--seed": _argument("order_seed"),
    "--shards": _argument("num_shards"),
    "--shuffle --seed": _argument("shuffle_seed"),
    "--shuffle or --seed": _argument("shuffle_seed"),
    "--shuffle": _argument("shuffle_seed"),
    "--source": _argument("source"),
    "--split": ("split= of sw.write_splits", "sw.write_splits(..., split={})"),
    "--tfds": _argument("tfds"),
    "--workers": _argument("workers"),
    "--world": _argument("world"),
}
"""Python for each option that takes a value: without the value, and a template with it."""

_TEXTS: Final[Mapping[str, str]] = {
    "(-j)": "(workers=)",
    "shown with -v": "shown above",  # Python prints causes by itself
}

# In a message, the word after an option counts as its value only if it is clearly one: a number, a
# quoted text, a word with an equals sign or commas, a placeholder in capitals, a known value, or a
# word before a colon.
_VALUE: Final = (
    r"(?P<value>\d+(?![\w.])|'[^']*'|\"[^\"]*\"|[^\s=]+=[^\s;)`]*[^\s;)`:,.]"
    r"|[A-Z][A-Z_]*(?![\w:])|\w+(?:,\w+)+"
    r"|(?:none|gzip|zlib|isal-2|zlib-6|serial|process|native|tensorflow|skip|raise|key|source"
    r"|image-folder|image-mask|coco|voc|csv|jsonl|parquet|numpy|tfrecord|webdataset|audio|python"
    r"|huggingface)(?![\w-])|(?!off:)\S+?(?=: ))"
)


def python_words(text: str) -> str:
    """Return a message or hint with Python arguments in place of command-line options.

    ``use --on-error skip`` becomes ``use on_error="skip"``. Commands in backquotes stay, as they
    are typed in a terminal; only ``shardwriter write --...`` becomes a call of ``sw.write``.

    Args:
        text: A message with command-line options.
    """
    for command_text, python_text in _TEXTS.items():
        text = text.replace(command_text, python_text)
    return _commands().sub(_translate, text) if "--" in text else text


@cache
def _commands() -> re.Pattern[str]:
    return re.compile(r"`shardwriter write(?P<flags>(?: --[^`]+))`|`[^`]*`|" + _flags().pattern)


@cache
def _flags() -> re.Pattern[str]:
    flags = "|".join(map(re.escape, FLAGS))
    options = "|".join(map(re.escape, sorted(OPTIONS, key=len, reverse=True)))
    end = r"(?![\w-])"
    return re.compile(
        rf"(?P<flag>{flags}){end}|(?P<option>{options}){end}(?: {_VALUE})?(?P<colon>(?=:))?"
    )


def _translate(found: re.Match[str]) -> str:
    if found["flag"] is not None:
        return FLAGS[found["flag"]]
    if found["option"] is not None:
        return _translate_option(found)
    flags = found["flags"]
    if flags is None:
        return found[0]
    return f"`sw.write(..., {', '.join(_translate(each) for each in _flags().finditer(flags))})`"


def _translate_option(found: re.Match[str]) -> str:
    alone, template = OPTIONS[found["option"]]
    value = found["value"]
    if value is not None:
        return template.format(value if value[0] in "'\"" or value.isdigit() else f'"{value}"')
    return alone if found["colon"] is None else alone.partition("=")[0]
