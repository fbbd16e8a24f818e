"""A few items as records, and what they say of all: sizes, features, a good number of shards."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

from shardwriter.dataset.naming import Output
from shardwriter.dataset.rank_partition import auto_num_shards
from shardwriter.errors import OptionError
from shardwriter.formats.sequence_names import feature_spelling, list_spelling
from shardwriter.formats.tfrecord import FRAME_BYTES
from shardwriter.writing.encode import ItemEncoder
from shardwriter.writing.selection import Selection

_SAMPLE_ITEMS: Final = 64


@dataclass(frozen=True)
class Sample:
    """What a few items, spread over the source, look like as records."""

    num_records: int
    mean_frame_bytes: float
    features: dict[str, Any]


def sample(selection: Selection, *, skip_errors: bool = False) -> Sample:
    """Encode up to 64 items at floor(k * T / 64); of a stream the first 64.

    Args:
        selection: The items.
        skip_errors: Whether those that give an error are left out.

    Raises:
        DataError: As a write of these items would.
    """
    num_items = selection.num_items
    if num_items is not None and selection.random_access:
        chosen = {k * num_items // _SAMPLE_ITEMS for k in range(_SAMPLE_ITEMS if num_items else 0)}
        items = selection.items_at(np.array(sorted(chosen), np.int64))
    else:
        items = enumerate(islice(selection.items(), _SAMPLE_ITEMS))
    encoder = ItemEncoder(selection.source, selection.options, 1, skip_errors=skip_errors)
    made = (record for _, record in encoder.records(items))
    sizes = [len(record) + FRAME_BYTES for record in made if isinstance(record, bytes)]
    mean = sum(sizes) / len(sizes) if sizes else 0.0
    schema = encoder.encoder.schema.to_json()
    lists = {list_spelling(n): entry for n, entry in schema.get("feature_lists", {}).items()}
    if lists:
        schema["features"] = {feature_spelling(n): e for n, e in schema["features"].items()}
    return Sample(len(sizes), mean, {**schema["features"], **lists})


def choose_num_shards(selection: Selection, output: Output, *, skip_errors: bool = False) -> int:
    """Return N: what OUT says, or for ``@auto`` a good number for this data.

    Shards of at most 200 MB, and a multiple of ``world * loader_workers`` so that every reader has
    the same number of them, where there are enough items.

    Raises:
        OptionError: ``@auto`` for a source that does not know its length.
    """
    if output.num_shards is not None:
        return output.num_shards
    num_items = selection.num_items
    if num_items is None:
        raise OptionError(
            "the number of items is not known before the end, so N can not be chosen",
            hint=f"say it: {output.name}@16, or --shards 16",
        )
    total_bytes = sample(selection, skip_errors=skip_errors).mean_frame_bytes * num_items
    readers = selection.options.world * selection.options.loader_workers
    return auto_num_shards(num_items, total_bytes, readers)
