"""Beam's file systems, with one client for each store, and what they raise as an OSError."""

from __future__ import annotations

import errno
import importlib
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from shardwriter.errors import MissingExtra, OptionError, ShardwriterError, SourceError
from shardwriter.storage.inputs import InputChanged

EXTRAS: Final = {
    "gs": "shardwriter[gcp]",
    "s3": "apache-beam[aws]",
    "azfs": "apache-beam[azure]",
    "hdfs": "apache-beam[hadoop]",
}
"""What has Beam's file system for a scheme."""

_PACKAGES: Final = {"s3": "boto3", "azfs": "azure.storage.blob", "hdfs": "hdfs"}
"""What Beam's file system of a scheme imports; without it Beam fails at the first request."""

_WEB: Final = ("http", "https", "ftp")

# What the clients that Beam uses raise, beside OSError. They are not imported for that.
_CLIENT_ERRORS: Final = (
    ("google.api_core.exceptions", "GoogleAPIError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("apache_beam.io.aws.clients.s3.messages", "S3ClientError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("azure.core.exceptions", "AzureError"),
    ("hdfs.util", "HdfsError"),
)

_clients: dict[tuple[int, str | None], tuple[Any, Any]] = {}


def file_system(path: str) -> Any:
    """Return Beam's file system for a URL.

    Raises:
        OptionError: No file system can read such URLs.
        MissingExtra: It is not installed.
        SourceError: It wants to be told more, as Hadoop's where the servers are.
    """
    scheme = path.partition("://")[0]
    if scheme in _WEB:
        raise OptionError(
            f"{scheme}:// can not be read",
            path=path,
            hint=f"download it, and give the file: curl -LO {shlex.quote(path)}",
        )
    extra = EXTRAS.get(scheme)
    try:
        from apache_beam.io.filesystems import FileSystems
    except ImportError as error:
        raise MissingExtra(
            f"{scheme}:// is read through Apache Beam: {error}",
            hint=f'pip install "{"shardwriter[gcp]" if scheme == "gs" else "shardwriter[beam]"}"',
        ) from error
    try:
        system = FileSystems.get_filesystem(path)
    except (ValueError, OSError) as error:
        reason = _innermost(error)
        if isinstance(error, OSError) and not isinstance(reason, ImportError):
            raise SourceError(f"can not be reached: {reason}", path=path) from error
        raise MissingExtra(
            f"Apache Beam has no file system for {scheme}:// here",
            hint=f'pip install "{extra}"'
            if extra
            else "URLs that can be read begin with gs://, s3://, hdfs:// or azfs://",
        ) from error
    # Amazon's and Microsoft's want some outside of pipelines too.
    options = "_pipeline_options" if scheme == "azfs" else "_options"
    if getattr(system, options, system) is None:
        from apache_beam.options.pipeline_options import PipelineOptions

        system = type(system)(pipeline_options=PipelineOptions([]))
    _share_client(system)
    return system


def _share_client(system: Any) -> None:
    """Let one client make all requests to Google's store.

    Beam makes a client, and with it a connection, for each.
    """
    make = getattr(system, "_gcsIO", None)
    if make is None:
        return
    options = getattr(system, "_pipeline_options", None)
    key = os.getpid(), os.environ.get("STORAGE_EMULATOR_HOST")
    held = _clients.get(key)
    if held is None or held[0] is not options:
        held = _clients[key] = options, make()
    client = held[1]
    system._gcsIO = lambda: client


# -- errors ----------------------------------------------------------------------------------------


@contextmanager
def answered(path: str) -> Iterator[None]:
    """Turn an OSError into a SourceError, where a question was asked."""
    try:
        yield
    except OSError as error:
        raise SourceError(f"can not be looked for: {error.strerror}", path=path) from error


@contextmanager
def told(path: str) -> Iterator[None]:
    """Turn what Beam and its clients raise into an OSError with a reason."""
    try:
        yield
    except ShardwriterError:
        raise
    except _raised() as error:
        if isinstance(error, InputChanged) or getattr(error, "filename", None) == path:
            raise  # it was told already
        found = _os_error(error, path)
        raise (_missing_package(path) if found.errno is None else None) or found from error


def _missing_package(path: str) -> MissingExtra | None:
    """Return the error for a package that Beam needs for a URL; None where it is there."""
    scheme = path.partition("://")[0]
    package = _PACKAGES.get(scheme)
    if package is None:
        return None
    try:
        importlib.import_module(package)
    except ImportError:
        needed = package.partition(".")[0]
        return MissingExtra(
            f"{scheme}:// needs the package {needed}", hint=f'pip install "{EXTRAS[scheme]}"'
        )
    return None


def _raised() -> tuple[type[BaseException], ...]:
    loaded = [getattr(sys.modules.get(name), kind, None) for name, kind in _CLIENT_ERRORS]
    return (OSError, ValueError, NotImplementedError, *filter(None, loaded))


def _innermost(error: BaseException) -> BaseException:
    """Return what stands at the bottom of Beam's errors, which hold those that they come from."""
    details = getattr(error, "exception_details", None)
    while isinstance(details, dict) and details:
        inner = next(iter(details.values()))
        if not isinstance(inner, BaseException):
            break
        error, details = inner, getattr(inner, "exception_details", None)
    return error


def _status(error: BaseException) -> int:
    code = getattr(error, "code", None) or getattr(error, "status_code", None)
    return int(code) if isinstance(code, int) else 0


def is_missing(error: BaseException) -> bool:
    """Tell whether an error says that there is nothing of the name."""
    error = _innermost(error)
    return (
        isinstance(error, FileNotFoundError)
        or _status(error) == 404
        or "not found" in str(error).lower()
    )


def _os_error(error: BaseException, path: str) -> OSError:
    error = _innermost(error)
    if is_missing(error):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if _status(error) in (401, 403) or isinstance(error, PermissionError):
        return PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    if "not a directory" in str(error).lower() or isinstance(error, NotADirectoryError):
        return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    text = " ".join(str(error).split())[:300] or type(error).__name__
    told = OSError(text)
    told.strerror = text
    return told
