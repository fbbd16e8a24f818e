"""TFDS's names: what OUT means with ``--tfds NAME:VERSION``, and what the files are called.

TFDS (https://www.tensorflow.org/datasets/external_tfrecord) finds a dataset by where it lies::

    DATA_DIR/NAME/VERSION/NAME-SPLIT.tfrecord-IIIII-of-NNNNN     shards
                          features.json                          types, of all splits
                          FEATURE.labels.txt                     names of classes, one a line
                          dataset_info.json                      lengths of the shards, by split

OUT is ``DATA_DIR/SPLIT@N``; without ``@`` it is DATA_DIR, and the split is ``train``. Name and
version are spelled once, so that folder, file names and metadata can not disagree.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from shardwriter.errors import OptionError

INFO_FILE: Final = "dataset_info.json"
FEATURES_FILE: Final = "features.json"
DEFAULT_SPLIT: Final = "train"
MAX_TFDS_SHARDS: Final = 99_999  # TFDS writes both numbers with 5 digits, and ours grow together

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_VERSION = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)")
_SPLIT = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
# Without an @ these are more likely meant to be a split than a folder to be made.
_SPLIT_NAMES: Final = frozenset({"train", "test", "val", "valid", "validation", "eval", "dev"})


@dataclass(frozen=True)
class TfdsSplit:
    """A split of a TFDS dataset.

    Attributes:
        name: The dataset.
        version: ``x.y.z``.
        split: The split.
    """

    name: str
    version: str
    split: str

    @property
    def dataset(self) -> str:
        """The dataset as ``--tfds`` spells it."""
        return f"{self.name}:{self.version}"

    @property
    def stem(self) -> str:
        """What shard names begin with."""
        return f"{self.name}-{self.split}.tfrecord"

    def to_json(self) -> dict[str, str]:
        """Return the manifest's ``metadata.tfds``."""
        return asdict(self)

    def is_beside(self, other: TfdsSplit) -> bool:
        """Tell whether another is of the same dataset, and not this one."""
        return self.dataset == other.dataset and self.split != other.split


def tfds_split_of(metadata: Mapping[str, Any]) -> TfdsSplit | None:
    """Return the split that a manifest's ``metadata`` names; None where it names none."""
    entry = metadata.get("tfds")
    if not isinstance(entry, Mapping):
        return None
    name, version, split = (entry.get(key) for key in ("name", "version", "split"))
    if not (isinstance(name, str) and isinstance(version, str) and isinstance(split, str)):
        return None
    if not (_NAME.fullmatch(name) and _VERSION.fullmatch(version) and _SPLIT.fullmatch(split)):
        return None
    return TfdsSplit(name, version, split)


def parse_tfds_out(out: str, dataset: str) -> tuple[str, TfdsSplit]:
    """Understand OUT beside ``--tfds NAME:VERSION``.

    Args:
        out: ``DATA_DIR/SPLIT@N``, or ``DATA_DIR``.
        dataset: ``NAME:VERSION``.

    Returns:
        What OUT would be without ``--tfds``, and the split.

    Raises:
        OptionError: TFDS could not find a dataset of this name, version or split.
    """
    name, _, version = dataset.partition(":")
    if not _NAME.fullmatch(name) or not _VERSION.fullmatch(version):
        raise OptionError(
            f"--tfds {dataset!r} is not NAME:VERSION",
            hint="as in demo:1.0.0; a name has small letters, digits and _, a version three "
            "numbers without zeros in front",
        )
    directory, base = os.path.split(out)
    if "@" in base:
        split, at, num_shards = base.partition("@")
    else:
        directory, split, at, num_shards = out, DEFAULT_SPLIT, "", ""
        if base in _SPLIT_NAMES and not os.path.isdir(out):
            raise OptionError(
                f"with --tfds {out!r} is a folder for datasets, as there is no @ in it",
                hint=f"{out}@N (or {out}@auto) names the split; {os.path.join(out, '')} the folder",
            )
    if not _SPLIT.fullmatch(split) or split == "all":
        raise OptionError(
            f"{split!r} can not be a split of a TFDS dataset",
            hint="use letters, digits and _, as in train@16; 'all' has a meaning of its own there",
        )
    found = TfdsSplit(name, version, split)
    return os.path.join(directory, name, version, found.stem) + at + num_shards, found
