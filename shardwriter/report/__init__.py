"""Output for people: tables in a terminal, and the HTML page of a report.

Reports are rendered from their JSON documents alone: `terminal` and `tables` print that of
``shard-stats``, `page` renders it as one HTML file. `written` prints the result of a write,
`records` records and schemas, and `render` has the text formats that all of them share.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
