"""Input formats: sources of items, one module for each ``--format``, and shards as input.

A source implements ``source.Source``; ``find`` is the registry, which detects and opens them.
Several formats share ``tables``, ``cells``, ``arrow``, ``positions``, ``input_files``,
``class_folders`` and ``detection``. ``queue`` and ``callables`` belong to ``python``, and
``shard_sets`` to ``tfrecord``. ``splits`` finds the splits of a source; ``shard_records`` reads
shards by index.

``open_source`` returns the ``Source`` of a path, a reference or a Python object; ``find_splits``
its splits. ``find_shard_sets`` finds datasets on disk, ``RecordReader`` reads their records by
position, and ``TFRecordFiles`` copies them.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
