"""The definition of a dataset: file names, item order, assignment to shards, manifest and index.

Everything here is arithmetic on names and numbers: which shard holds which item, what a shuffle, a
split or a key order does to source order, which records a rank reads, and where a record is in its
file. Nothing here reads data; the manifest and the index state the results.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
