"""Errors on their way from one process to another, and what is said of a worker that died."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Callable
from typing import Final

from shardwriter import errors
from shardwriter.errors import RunError, ShardwriterError, WorkerDied

_MAX_BYTES: Final = 16 << 20


class RemoteTraceback(Exception):
    """The traceback of an error in another process, as text; found as its ``__cause__``."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


def pack_failure(error: BaseException) -> bytes:
    """Return the bytes of an error; whatever it is, there are some."""
    text = "".join(traceback.format_exception(error))
    parts = [_dumps(error), _dumps(error.__cause__), _dumps(_plain(error))]
    return pickle.dumps((parts, _summary(error), text))


def unpack_failure(data: bytes, worker: str, shard: Callable[[int], int]) -> BaseException:
    """Return the error, with its cause, its place, and the traceback of where it was raised.

    Args:
        data: What :func:`pack_failure` has made of it.
        worker: The name of the process that it comes from.
        shard: Tells to which shard the item of an index belongs.
    """
    parts, summary, text = pickle.loads(data)
    error, cause, plain = map(_loads, parts)
    remote = RemoteTraceback(f"{worker}\n{text}")
    if error is None:
        error = plain or RunError(f"it raised {summary}", hint="the traceback is shown with -v")
    if cause is not None:
        cause.__cause__ = remote
    error.__cause__ = cause or remote
    if isinstance(error, ShardwriterError):
        error.worker = worker
        if error.index is not None:
            error.shard = shard(error.index)
    return error


def _summary(error: BaseException) -> str:
    try:
        text = errors.reason(error)
    except Exception:  # noqa: BLE001 - of the user's own making
        text = ""
    return type(error).__name__ + (f": {text}" if text else "")


def _plain(error: BaseException) -> ShardwriterError | None:
    """Return an error of ours that stands for one of a class that was derived from ours."""
    if not isinstance(error, ShardwriterError):
        return None
    base = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    assert issubclass(base, ShardwriterError)
    plain = base(f"{type(error).__name__}: {error.message}")
    fields = {**vars(error), "path": error.path}
    vars(plain).update({name: fields[name] for name in vars(plain) if name in fields})
    plain.path, plain.message = error.path, f"{type(error).__name__}: {error.message}"
    return plain


def _dumps(error: BaseException | None) -> bytes | None:
    """Return the bytes of an error that another process can make use of; None where it can not."""
    if error is None:
        return None
    from shardwriter.writing.parcel import pack  # cloudpickle with it: only where things fail

    try:
        # One may hold the user's whole dataset.
        data, descriptors = pack(error, _MAX_BYTES)
        pickle.loads(data)  # many exceptions pickle and do not come back
    except BaseException:  # noqa: BLE001 - of the user's own making; its text is there all the same
        return None
    return None if descriptors else data


def _loads(data: bytes | None) -> BaseException | None:
    if data is None:
        return None
    try:
        error = pickle.loads(data)
    except BaseException:  # noqa: BLE001 - a class that this process can not import
        return None
    return error if isinstance(error, BaseException) else None


def died(worker: str, status: int | None, index: int | None, shards: str) -> WorkerDied:
    """Say how a worker ended that should not have.

    Args:
        worker: Its name.
        status: As ``waitpid`` gives it; None where nobody knows.
        index: The item at hand; None for none.
        shards: Which it was writing.
    """
    how, hint = how_ended(status)
    doing = f"while it wrote {shards}" if index is None else "at this item"
    return WorkerDied(f"{how} {doing}", hint=hint, index=index, worker=worker)


def how_ended(status: int | None) -> tuple[str, str]:
    """Say how a process ended, and what to do about it."""
    trace = "--engine serial has it happen where you can see it"
    if status is None:
        return "the process is gone", trace
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGKILL:
        return (
            "the process was killed (SIGKILL)",
            "the system does this when memory runs out: use fewer workers (-j), or smaller items",
        )
    if code < 0:
        name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
        return (
            f"the process was ended by {name}",
            f"native code that is called from a map or a source does this; {trace}",
        )
    return f"the process ended itself with code {code}", f"look for os._exit in the map; {trace}"
