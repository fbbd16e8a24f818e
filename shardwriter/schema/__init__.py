"""Feature types: inferred from values, declared by the user, joined, and restored on reading.

A `Schema` gathers the type of each feature while records are written; a `Validator` checks values
against a declared schema; an `ExampleDecoder` gives decoded features their types back.
`RecordStats` joins schema, label counts and data warnings of several workers.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
