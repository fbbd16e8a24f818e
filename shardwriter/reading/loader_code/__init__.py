"""`loader_code`: a short Python program that reads a dataset with a framework.

`facts` collects what the programs depend on, and has helpers that format Python source: names and
paths are quoted, since they may contain anything. `for_tensorflow` and `for_dali` write programs
without shardwriter. Those for PyTorch and grain, in this file, use shardwriter's readers, which
return records with their types; the program converts a record to a sample (decodes images, fills in
missing values) and samples to a batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal, get_args

from shardwriter.errors import OptionError
from shardwriter.reading.known_schema import SAMPLED_RECORDS
from shardwriter.reading.loader_code.facts import (
    IMAGE_SIZE,
    Facts,
    Field,
    call,
    class_names,
    collection,
    comment,
    find_facts,
    literal,
    opening,
    quoted,
    why_absent,
)
from shardwriter.reading.loader_code.for_dali import dali_code
from shardwriter.reading.loader_code.for_tensorflow import tensorflow_code


def torch_code(facts: Facts) -> str:
    """Return the program for PyTorch."""
    return _Program(facts, "torch").text()


def grain_code(facts: Facts) -> str:
    """Return the program for grain."""
    return _Program(facts, "grain").text()


class _Program:
    """The program for one framework.

    Args:
        facts: The dataset.
        framework: The framework.
    """

    def __init__(self, facts: Facts, framework: Literal["torch", "grain"]) -> None:
        self._facts = facts
        self._is_torch = framework == "torch"
        fields = facts.fields
        self._masks = [field for field in facts.pictures if field.is_mask]
        self._images = [field for field in facts.pictures if not field.is_mask]
        self._padded = [field for field in fields if field.varies_first]
        self._ragged = [
            field
            for field in fields
            if field.is_number and not field.is_fixed and not field.varies_first
        ]
        self._has_prepare = bool(
            facts.pictures or not facts.from_manifest or any(field.is_optional for field in fields)
        )
        # Neither framework stacks text, and torch's default_collate transposes lists of it.
        texts = [field for field in fields if not field.is_number and not field.is_picture]
        lists = texts if not self._is_torch else [f for f in texts if not f.is_scalar]
        is_odd = bool(self._padded or self._ragged or lists)
        self._has_collate = is_odd

    def text(self) -> str:
        """Return the program's source."""
        parts = [self._head()]
        if any(field.is_optional for field in self._facts.fields):
            parts.append(_known(self._facts.from_manifest))
        if self._images:
            parts.append(self._image())
        if self._masks:
            parts.append(self._mask())
        if self._has_prepare:
            parts.append(self._prepare())
        if self._has_collate:
            parts.append(self._collate())
        parts += [self._batches(), self._main()]
        return "\n\n\n".join("\n".join(part) for part in parts) + "\n"

    def _head(self) -> list[str]:
        facts = self._facts
        pillow = ", and Pillow" if facts.pictures else ""
        if self._is_torch:
            lines = opening(facts, "PyTorch", f'pip install "shardwriter[torch]"{pillow}')
        else:
            lines = opening(facts, "grain", f"pip install shardwriter grain{pillow}")
        lines += [""]
        if facts.pictures:
            lines += ["import io", ""]
        lines += self._imports()
        lines += ["", f"DATASET = {quoted(facts.path)}", "BATCH_SIZE = 32"]
        if facts.pictures:
            lines.append(IMAGE_SIZE)
        if self._padded:
            names = [quoted(field.name) for field in self._padded]
            lines += comment("Lists of varying length, padded to the longest of a batch.")
            lines += collection("PADDED = [", names, "]")
        if self._ragged:
            names = [quoted(field.name) for field in self._ragged]
            lines += comment("Arrays whose shapes vary in other ways, not stacked.")
            lines += collection("LISTED = [", names, "]")
        names = class_names(facts.fields)
        return [*lines, "", *names] if names else lines

    def _imports(self) -> list[str]:
        has_optional = any(field.is_optional and field.is_number for field in self._facts.fields)
        needs_numpy = bool(self._facts.pictures or self._has_collate or has_optional)
        lines = ["import numpy as np"] if needs_numpy else []
        if not self._is_torch:
            lines = ["import grain", *lines, "import shardwriter as sw"]
        elif self._has_collate:
            lines.append("import torch")
        lines += ["from PIL import Image"] if self._facts.pictures else []
        if self._is_torch:
            lines.append("from shardwriter.reading.torch import ShardLoader")
            if self._padded:
                lines.append("from torch.nn.utils.rnn import pad_sequence")
        return lines

    def _image(self) -> list[str]:
        lines = ["def image(data):"]
        if self._is_torch:
            shape, transposed = "uint8[3, height, width]", ".transpose(2, 0, 1).copy()"
        else:
            shape, transposed = "uint8[height, width, 3]", ""
        return [
            *lines,
            f'    """Return the pixels of an image file: {shape}."""',
            *self._no_picture("(3, *IMAGE_SIZE)" if self._is_torch else "(*IMAGE_SIZE, 3)"),
            '    picture = Image.open(io.BytesIO(data)).convert("RGB")',
            f"    return np.array(picture.resize(IMAGE_SIZE[::-1])){transposed}",
        ]

    def _mask(self) -> list[str]:
        return [
            "def mask(data):",
            '    """Return the pixels of a mask: class numbers, or indices into its palette."""',
            *self._no_picture("IMAGE_SIZE"),
            "    picture = Image.open(io.BytesIO(data))",
            "    return np.array(picture.resize(IMAGE_SIZE[::-1], Image.Resampling.NEAREST))",
        ]

    def _no_picture(self, shape: str) -> list[str]:
        """Return lines that use a black image for a record without one."""
        if not self._facts.is_sample:
            return []
        return ["    if not data:", f"        return np.zeros({shape}, np.uint8)"]

    def _prepare(self) -> list[str]:
        lines = [
            "def prepare(features):",
            '    """Return the sample of a record\'s features."""',
            "    return {",
        ]
        for field in self._facts.fields:
            lines += self._entry(field)
        return [*lines, "    }"]

    def _entry(self, field: Field) -> list[str]:
        name = quoted(field.name)
        value = f"features[{name}]"
        lines = []
        is_alone = field.is_scalar and not self._facts.from_manifest  # a list of one value
        if field.is_optional:
            if field.num_missing:
                lines += comment(f"{why_absent(field, self._facts.num_counted)}.", indent=2)
            default = _default(field)
            parts = [f"features.get({name})", f"[{default}]" if is_alone else default]
            head, tail = f"{name}: known(", ")[0]," if is_alone else "),"
            if field.is_picture:
                head = f"{name}: {'mask' if field.is_mask else 'image'}(known("
                tail = f"{tail[:-1]}),"
            return lines + call(head, parts, tail, indent=2)
        if is_alone:
            value += "[0]"
        if field.is_picture:
            value = f"{'mask' if field.is_mask else 'image'}({value})"
        return [*lines, f"        {name}: {value},"]

    def _collate(self) -> list[str]:
        arrays = "tensors" if self._is_torch else "arrays"
        lines = [
            "def collate(samples):",
            f'    """Return a batch: a dict of {arrays}; text is in lists."""',
            "    batch = {}",
            "    for name in samples[0]:",
            "        values = [sample[name] for sample in samples]",
        ]
        branch = "if"
        if self._padded:
            lines.append("        if name in PADDED:")
            lines += self._pad()
            branch = "elif"
        odd = "name in LISTED or " if self._ragged else ""
        stacked = "np.stack(values)"
        if self._is_torch:
            stacked = f"torch.as_tensor({stacked})"
        return [
            *lines,
            f"        {branch} {odd}isinstance(values[0], (str, bytes, list)):",
            "            batch[name] = values",
            "        else:",
            f"            batch[name] = {stacked}",
            "    return batch",
        ]

    def _pad(self) -> list[str]:
        length = f'f"{{name}}{self._length_suffix()}"'
        if self._is_torch:
            return [
                "            tensors = [torch.as_tensor(value) for value in values]",
                "            batch[name] = pad_sequence(tensors, batch_first=True)",
                f"            batch[{length}] = torch.tensor([len(value) for value in values])",
            ]
        return [
            "            lengths = np.array([len(value) for value in values])",
            "            shape = (len(values), lengths.max(), *values[0].shape[1:])",
            "            batch[name] = np.zeros(shape, values[0].dtype)",
            "            for row, value in enumerate(values):",
            "                batch[name][row, : len(value)] = value",
            f"            batch[{length}] = lengths",
        ]

    def _length_suffix(self) -> str:
        """Return the suffix of names of lengths, such that no feature has such a name."""
        names = {field.name for field in self._facts.fields}
        suffix = "/length"
        while any(field.name + suffix in names for field in self._padded):
            suffix += "_"
        return suffix

    def _batches(self) -> list[str]:
        if not self._is_torch:
            parts = ["BATCH_SIZE"]
            if self._has_collate:
                parts.append("batch_fn=collate")
            mapped = ".map(prepare)" if self._has_prepare else ""
            return [
                "def batches(shuffle=False, seed=0, rank=0, world=1):",
                '    """Return batches of one rank: an iterable of dicts."""',
                "    dataset = grain.MapDataset.source(sw.open(DATASET))",
                "    if shuffle:",
                "        dataset = dataset.seed(seed).shuffle()",
                f"    dataset = dataset[rank::world]{mapped}",
                f"    return dataset.batch({', '.join(parts)}).to_iter_dataset()",
            ]
        lines = [
            "def batches(shuffle=False, num_workers=2):",
            '    """Return a DataLoader of batches; set_epoch(epoch) changes the order."""',
            "    return ShardLoader(",
            "        DATASET,",
            "        BATCH_SIZE,",
            "        shuffle=shuffle,",
            '        uneven="drop",  # records that do not divide by ranks; "pad" to evaluate',
        ]
        if self._has_prepare:
            lines.append("        map=prepare,")
        if self._has_collate:
            lines.append("        collate=collate,")
        return [*lines, "        num_workers=num_workers,", "    )"]

    def _main(self) -> list[str]:
        size = "getattr(values, 'shape', len(values))"
        return [
            'if __name__ == "__main__":',
            "    for batch in batches():",
            "        for name, values in batch.items():",
            f"            print(name, type(values).__name__, {size})".replace("'", '"'),
            "        break",
        ]


def _known(from_manifest: bool) -> list[str]:
    # Without a schema every value is a list, and may be empty.
    absent = "value is None" if from_manifest else "value is None or not len(value)"
    return [
        "def known(value, default):",
        '    """Return a value, or the default if it is missing."""',
        f"    return default if {absent} else value",
    ]


def _default(field: Field) -> str:
    """Return the default of a missing value: NaN, 0, an empty string or list, or zeros."""
    dtype = field.type.dtype
    if not field.is_number:
        if field.is_scalar:
            return '""' if dtype == "string" else 'b""'
        return "[]"
    numbers = "bool_" if dtype == "bool" else dtype or "int64"
    is_float = numbers.startswith("float")
    if field.is_scalar:
        return f"np.{numbers}({literal('nan') if is_float else 0})"
    if field.is_fixed and not field.is_raw:
        fill = literal(float("nan")) if is_float else "0"
        return f"np.full({literal(list(field.shape or ()))}, {fill}, np.{numbers})"
    shape = [n or 0 for n in field.shape or (0,)]
    return f"np.zeros({literal(shape)}, np.{numbers})"


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
    num_records: int = SAMPLED_RECORDS,
    notify: Callable[[str], None] | None = None,
) -> str:
    """Return a Python program that reads a dataset with a framework.

    It runs unchanged in the folder that the path is relative to, and prints a batch. Its functions
    return examples and batches, to build on.

    Args:
        path: The dataset; see `shardwriter.open`.
        framework: ``tensorflow`` (plain TensorFlow), ``torch`` (with `ShardLoader`), ``dali`` or
            ``grain``.
        num_records: Number of records to infer types from, without a manifest.
        notify: Called with each note, a line of text.

    Raises:
        OptionError: The path matches nothing or several datasets, or the framework can not read it.
        DataError: Shards are missing, or records are not Examples.
        StorageError: A file can not be read.
    """
    if framework not in get_args(Framework):
        raise OptionError(
            f"there is no code for {framework!r}", hint=f"one of {', '.join(get_args(Framework))}"
        )
    return _WRITERS[framework](find_facts(path, num_records=num_records, notify=notify))
