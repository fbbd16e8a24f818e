"""The same write and scan on a cluster, by Apache Beam: the bytes are those of one machine.

``WriteShards`` ends a pipeline with a dataset of N shards, ``ReadShards`` begins one with the
records of shards, ``ShardStats`` gives the report of ``shard-stats``.
"""

from __future__ import annotations

from typing import Any

import lazy_loader

from shardwriter.errors import MissingExtra

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in __all__:
        try:
            import apache_beam  # noqa: F401
        except ImportError as error:
            raise MissingExtra(
                f"{__name__} needs Apache Beam: {error}", hint='pip install "shardwriter[beam]"'
            ) from error
    return _load(name)
