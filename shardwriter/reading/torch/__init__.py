"""Shards into PyTorch: ``from shardwriter.reading.torch import ShardLoader``.

This package needs the ``torch`` extra and imports torch.
"""

from __future__ import annotations

from shardwriter.errors import MissingExtra

try:
    import torch  # noqa: F401
except ImportError as error:
    raise MissingExtra(
        f"these readers need PyTorch: {error}", hint='pip install "shardwriter[torch]"'
    ) from error

from shardwriter.reading.torch.datasets import IterableShards, MapShards
from shardwriter.reading.torch.loader import LoaderTimings, ShardLoader

__all__ = ["ShardLoader", "LoaderTimings", "IterableShards", "MapShards"]
