"""Sources of items, one file for each ``--format``, and shards as input.

``open_source`` returns the ``Source`` of a path, a reference or a Python object; ``find_splits``
its splits. ``find_shard_sets`` finds datasets on disk, ``RecordReader`` reads their records by
position, and ``TFRecordFiles`` copies them.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
