"""Loader code for a dataset: a short program that reads it, for people to go on from.

A file a framework says what is peculiar to it; `facts` is what all of them know of a dataset, and
`text` quotes names and paths, which may hold anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal, get_args

from shardwriter.errors import OptionError
from shardwriter.reading.known_schema import LOOKED_AT
from shardwriter.reading.loader_code.facts import find_facts
from shardwriter.reading.loader_code.for_dali import dali_code
from shardwriter.reading.loader_code.for_tensorflow import tensorflow_code
from shardwriter.reading.loader_code.programs import grain_code, torch_code

Framework = Literal["tensorflow", "torch", "dali", "grain"]

_WRITERS = {
    "tensorflow": tensorflow_code,
    "torch": torch_code,
    "dali": dali_code,
    "grain": grain_code,
}


def loader_code(
    path: str | os.PathLike[str],
    framework: Framework,
    *,
    num_records: int = LOOKED_AT,
    notify: Callable[[str], None] | None = None,
) -> str:
    """Return a Python program that reads a dataset, as it is, with a framework.

    It runs as it is in the folder in which the path was given, and prints what a batch holds. To
    be gone on with: its functions give examples and batches.

    Args:
        path: The dataset; see `shardwriter.open`.
        framework: ``tensorflow`` (plain TensorFlow), ``torch`` (with `ShardLoader`), ``dali`` or
            ``grain``.
        num_records: Records to look at where no manifest tells the types.
        notify: Told of what is worth knowing, a line at a time.

    Raises:
        OptionError: The path names nothing or several datasets, or the framework can not read it.
        DataError: The dataset is not whole, or its records are no Examples.
        StorageError: A file can not be read.
    """
    if framework not in get_args(Framework):
        raise OptionError(
            f"there is no code for {framework!r}", hint=f"one of {', '.join(get_args(Framework))}"
        )
    return _WRITERS[framework](find_facts(path, num_records=num_records, notify=notify))
