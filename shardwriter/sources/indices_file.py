"""``--indices FILE``: a file of indices, ``.npy`` or text with one number a line."""

from __future__ import annotations

import warnings
from io import BytesIO

import numpy as np

from shardwriter.dataset.indices import ItemIndices, item_indices
from shardwriter.errors import OptionError
from shardwriter.sources.numpy_file import BROKEN
from shardwriter.storage.inputs import inputs_for


def read_indices(path: str, *, allow_duplicates: bool = False) -> ItemIndices:
    """Return the indices that a file holds, also at a URL.

    Args:
        path: The file.
        allow_duplicates: Whether an item may stand there more than once.

    Raises:
        OptionError: It can not be read, or holds anything else.
    """
    try:
        data = inputs_for(path).read(path)[1]
    except OSError as error:
        raise OptionError(f"--indices: can not be read: {error.strerror}", path=path) from error
    try:
        if data.startswith(b"\x93NUMPY"):
            return item_indices(_array(data), allow_duplicates=allow_duplicates)
        return item_indices(_numbers(data), allow_duplicates=allow_duplicates)
    except OptionError as error:
        error.path = path
        raise


def _array(data: bytes) -> np.ndarray:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # headers that Python 2 wrote
            array: np.ndarray = np.load(BytesIO(data), allow_pickle=False)
    except (*BROKEN, MemoryError) as error:
        raise OptionError(f"--indices: is no array of integers: {error}") from None
    return array


def _numbers(data: bytes) -> list[int]:
    lines = data.splitlines()
    try:
        return [int(line) for line in lines if line and not line.isspace()]
    except ValueError:
        for number, line in enumerate(lines, 1):
            if line and not line.isspace() and not _is_number(line):
                text = line[:40].decode("utf-8", "replace")
                raise OptionError(
                    f"--indices: {text!r} is no number",
                    line=number,
                    hint="an .npy file, or text with one number a line",
                ) from None
        raise


def _is_number(line: bytes) -> bool:
    try:
        int(line)
    except ValueError:
        return False
    return True
