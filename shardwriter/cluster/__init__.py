"""Apache Beam: shards written and read by a cluster, with the same bytes as on one machine.

Names are imported when first used, as Beam is an extra; without it they raise MissingExtra.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from shardwriter.errors import MissingExtra

if TYPE_CHECKING:
    from shardwriter.cluster.beam import ReadShards, SaveText, ShardStats, WriteShards
    from shardwriter.cluster.launch import open_launch

__all__ = ["ReadShards", "SaveText", "ShardStats", "WriteShards", "open_launch"]

_MODULES: Final = {
    "ReadShards": "shardwriter.cluster.beam",
    "SaveText": "shardwriter.cluster.beam",
    "ShardStats": "shardwriter.cluster.beam",
    "WriteShards": "shardwriter.cluster.beam",
    "open_launch": "shardwriter.cluster.launch",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import apache_beam  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            f"{__name__} needs Apache Beam: {error}", hint='pip install "shardwriter[beam]"'
        ) from error
    return getattr(import_module(_MODULES[name]), name)
