"""Byte formats: TFRecord frames, compressed shards, Examples, and media headers.

Frames with masked CRC-32C are written and read here, plain or as gzip and zlib shards cut at
records. Examples and SequenceExamples are encoded and decoded one by one or as columns, without
TensorFlow. Also here: canonical JSON, TensorBoard events, image and WAV headers, and text for
people. The input formats of ``--format`` are in ``sources``.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
