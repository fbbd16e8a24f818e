"""Errors on their way from one process to another, and what is said of a worker that died."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from typing import Any

import cloudpickle

from shardwriter.errors import RunError, ShardwriterError, WorkerDied


class RemoteTraceback(Exception):
    """The traceback of an error in another process, as text; found as its ``__cause__``."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


def pack_failure(error: BaseException) -> bytes:
    """Return the bytes of an error; whatever it is, there are some."""
    text = "".join(traceback.format_exception(error))
    parts = [_dumps(error), _dumps(error.__cause__)]
    return pickle.dumps((parts, f"{type(error).__name__}: {error}", text))


def unpack_failure(data: bytes, worker: str, shard: Any = None) -> BaseException:
    """Return the error, with its cause, its place, and the traceback of where it was raised."""
    (error_data, cause_data), summary, text = pickle.loads(data)
    error, cause = _loads(error_data), _loads(cause_data)
    remote = RemoteTraceback(text)
    if error is None:
        error = RunError(f"{worker} raised {summary}", hint="the traceback is shown with -v")
    if cause is not None:
        cause.__cause__ = remote
    error.__cause__ = cause or remote
    if isinstance(error, ShardwriterError):
        error.worker = worker
        if error.index is not None:
            error.shard = shard(error.index)
    return error


def _dumps(error: BaseException | None) -> bytes | None:
    if error is None:
        return None
    try:
        data = bytes(cloudpickle.dumps(error))
        pickle.loads(data)  # many exceptions pickle and do not come back
    except Exception:  # noqa: BLE001 - of the user's own making; its text is there all the same
        return None
    return data


def _loads(data: bytes | None) -> BaseException | None:
    if data is None:
        return None
    try:
        error = pickle.loads(data)
    except Exception:  # noqa: BLE001 - a class that this process can not import
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
    how, hint = _how(status)
    doing = f"while it wrote {shards}" if index is None else "at this item"
    return WorkerDied(f"{how} {doing}", hint=hint, index=index, worker=worker)


def _how(status: int | None) -> tuple[str, str]:
    trace = "run with --engine serial to have it happen where you can see it"
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
