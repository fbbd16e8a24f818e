"""Reading a dataset back: records by number, epochs, rank partitions, framework loaders.

`opening` opens a path as a `Dataset` (`dataset`), a sequence that can be sliced, shuffled and split
between ranks. `torch` and `tensorflow` are loaders on top of it that can be checkpointed.
`loader_code` prints a program that reads a dataset; `show`, `find`, `pictures` and `known_schema`
are behind the commands ``show``, ``find`` and ``schema``.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
