"""Apache Beam: shards from a cluster, the same as those of one machine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from shardwriter.errors import MissingExtra

if TYPE_CHECKING:
    from shardwriter.cluster.beam import ReadShards, ShardStats, WriteShards

__all__ = ["ReadShards", "ShardStats", "WriteShards"]

_HOMES: Final = {
    "ReadShards": "shardwriter.cluster.beam",
    "ShardStats": "shardwriter.cluster.beam",
    "WriteShards": "shardwriter.cluster.beam",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import apache_beam  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            f"{__name__} needs Apache Beam: {error}", hint='pip install "shardwriter[beam]"'
        ) from error
    return getattr(import_module(_HOMES[name]), name)
