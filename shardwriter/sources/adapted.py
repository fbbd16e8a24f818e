"""Objects of other libraries that give items in a way of their own."""

from __future__ import annotations

from typing import Any

from shardwriter.sources import huggingface
from shardwriter.sources.queue import QueueItems, is_queue
from shardwriter.sources.torch_loader import LoaderItems, is_loader


def adapted(data: Any) -> Any:
    """Return what gives an object's items: most objects do that themselves.

    Raises:
        SourceError: It is several datasets.
    """
    huggingface.check_no_splits(data)
    if huggingface.is_stream(data):
        return huggingface.UndecodedItems(data)
    if is_loader(data):
        return LoaderItems(data)
    if is_queue(data):
        return QueueItems(data)
    return data
