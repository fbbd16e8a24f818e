"""Write datasets: from a source to published shards, index and manifest.

``write_dataset``, ``append_dataset`` and ``write_all`` are the entry points. A :class:`Job` says
what to write; an engine (serial, or a pool of worker processes) writes sealed shards into a
:class:`RunDirectory`; publication gives them their final names. A stopped run is resumed from the
journals and snapshots in its run directory.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
