"""Sizes, rates and shares of time as text."""

from __future__ import annotations

from collections.abc import Mapping


def bytes_text(num_bytes: float | None) -> str:
    """Return a size as people read it: ``80.3 kB``."""
    if num_bytes is None:
        return "-"
    size = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{size:,.0f} {unit}" if unit == "B" or size >= 99.5 else f"{size:,.1f} {unit}"


def rate_text(count: float, elapsed_s: float) -> str:
    """Return ``1,234 items/s``."""
    rate = count / max(elapsed_s, 1e-9)
    return f"{rate:,.0f} items/s" if rate >= 10 else f"{rate:.1f} items/s"


def shares_text(seconds: Mapping[str, float]) -> str:
    """Say in a line where the time goes: the stages that take a hundredth or more of it."""
    total = sum(seconds.values())
    shares = {stage: value / total for stage, value in seconds.items() if value > 0.005 * total}
    return ", ".join(f"{stage} {share:.0%}" for stage, share in shares.items())


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return ``1 record``, ``1,234 records``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
