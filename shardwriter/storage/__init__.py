"""Files on local disks and in object stores.

Outputs: ``Storage`` and ``storage_for`` (create, sync, publish), ``take_lock`` for run directories.
Inputs: ``Inputs`` and ``inputs_for`` (list, stat, read by position), ``FilePool`` for many files.
Paths are local paths or URLs; URLs need Apache Beam.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
