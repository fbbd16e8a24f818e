"""PyTorch loaders of a dataset: ``from shardwriter.reading.torch import ShardLoader``.

Importing it imports torch, which the extra ``shardwriter[torch]`` installs.
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
