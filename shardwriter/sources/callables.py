"""The user's own code: finding it by ``module:name``, and saying which code it is."""

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
    """Tell whether a text has the form ``module:callable``."""
    return _REFERENCE.fullmatch(text) is not None


def import_reference(text: str, option: str) -> Any:
    """Import ``module:name``, looking in the current folder too.

    Args:
        text: The reference.
        option: What it was given for; named in errors.

    Raises:
        OptionError: There is no such module or name, or importing the module raises.
    """
    if not is_reference(text):
        raise OptionError(f"{option}: {text!r} is not module:callable", hint="as in mydata:train")
    module_name, _, path = text.partition(":")
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        folder = ""  # it is gone; the installed packages are there
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise _broken(option, module_name, error) from error
        raise OptionError(
            f"{option}: there is no module {error.name!r}",
            hint=f"looked in {folder or 'no current folder'} and the installed packages",
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
    """Return what identifies a function on any machine: its names and a hash of its module's file.

    A function without a file (typed into a shell) is known by its own text, or else by its names; a
    ``functools.partial`` by its function and its arguments, as far as these are numbers and text.
    """
    if isinstance(function, partial):
        arguments = [function.args, function.keywords]
        return {**describe_callable(function.func), "arguments": _plain(arguments)}
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


def _plain(value: Any) -> Any:
    """Return a value as JSON; of what is no number, text or collection only its class."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    return describe_callable(value) if callable(value) else {"class": type(value).__qualname__}
