"""Bytes that others define: TFRecord frames, CRC-32C, Examples, image and WAV headers, events."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
