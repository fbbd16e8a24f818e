"""Inspection and repair of datasets on disk.

`stats` and `verify` scan shards and return a `Report`: findings, balance, label mix, shuffle score,
feature statistics, drift and split plan, as one JSON document (``stats.schema.json``). Gates and
baselines turn a report into pass or fail. `repair` copies what is good and rewrites what a source
can provide. How a report is shown is up to :mod:`shardwriter.report`.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
