"""Results for people: tables in a terminal and a page in a browser, made of JSON documents."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
