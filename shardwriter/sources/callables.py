"""References to the user's code (``module:name``): import them, and identify the code."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from shardwriter.errors import OptionError, reason

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def is_reference(text: str) -> bool:
    """Return whether a text has the form ``module:callable``."""
    return _REFERENCE.fullmatch(text) is not None


def import_reference(text: str, option: str) -> Any:
    """Import ``module:name``, from the current folder or the installed packages.

    Args:
        text: The reference.
        option: The option that has it, for error messages.

    Raises:
        OptionError: There is no such module or name, or importing the module raises.
    """
    if not is_reference(text):
        raise OptionError(f"{option}: {text!r} is not module:callable", hint="such as mydata:train")
    module_name, _, path = text.partition(":")
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        folder = ""  # it was deleted; import from the installed packages
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise _broken(option, module_name, error) from error
        raise OptionError(
            f"{option}: there is no module {error.name!r}",
            hint=f"searched {folder or 'no current folder'} and the installed packages",
        ) from None
    except Exception as error:
        raise _broken(option, module_name, error) from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise OptionError(f"{option}: module {module_name!r} has no {path!r}") from None
    return found


def _broken(option: str, module_name: str, error: Exception) -> OptionError:
    return OptionError(
        f"{option}: importing {module_name!r} raised {type(error).__name__}: {reason(error)}",
        hint="the traceback is shown with -v",
    )


def describe_module(name: str) -> dict[str, Any]:
    """Return what identifies an imported module on any machine: its name and a hash of its file."""
    path = getattr(sys.modules.get(name), "__file__", None)
    digest = None if path is None else sha256(Path(path).read_bytes()).hexdigest()
    return {"module": name, "sha256": digest}


def describe_callable(function: Callable[..., Any]) -> dict[str, Any]:
    """Return what identifies a function on any machine: its name and a hash of its module's file.

    Without a file (typed into a shell), the hash is that of its own source text, if any. A
    ``functools.partial`` is its function with its arguments, as far as these are numbers and text.
    """
    if isinstance(function, partial):
        arguments = [function.args, function.keywords]
        return {**describe_callable(function.func), "arguments": _as_json(arguments)}
    target = function if hasattr(function, "__qualname__") else type(function)
    source: bytes | None = None
    try:
        source = Path(inspect.getsourcefile(target) or "").read_bytes()
    except (TypeError, OSError):
        try:
            source = inspect.getsource(target).encode()
        except (TypeError, OSError):
            source = None
    return {
        "module": getattr(target, "__module__", None),
        "qualname": target.__qualname__,
        "sha256": None if source is None else sha256(source).hexdigest(),
    }


def _as_json(value: Any) -> Any:
    """Return a value as JSON; other objects than numbers, texts and collections by their class."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return [_as_json(part) for part in value]
    if isinstance(value, Mapping):
        return {str(key): _as_json(part) for key, part in value.items()}
    return describe_callable(value) if callable(value) else {"class": type(value).__qualname__}
