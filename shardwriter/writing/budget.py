"""How many items may give an error."""

from __future__ import annotations

from shardwriter.errors import ShardwriterError, TooManyErrors
from shardwriter.writing.options import RunOptions
from shardwriter.writing.resume_state import Kept


class ErrorBudget:
    """Counts the errors of all workers, and those of earlier attempts.

    Args:
        options: Say how many may be.
        kept: Has those that were.
    """

    def __init__(self, options: RunOptions, kept: Kept) -> None:
        self._most = options.max_errors
        self._count = len(kept.errors)

    def check(self) -> None:
        """Refuse to go on where earlier attempts have met too many already.

        Raises:
            TooManyErrors: They have.
        """
        if self._most is not None and self._count > self._most:
            raise TooManyErrors(
                f"{self._count:,} items gave an error before, and {self._most:,} may",
                hint="--retry-errors tries them again; or allow more (--max-errors)",
            )

    def spend(self, error: ShardwriterError) -> None:
        """Count an error.

        Raises:
            TooManyErrors: It is one too many.
        """
        self._count += 1
        if self._most is not None and self._count > self._most:
            raise TooManyErrors(
                f"{self._count:,} items gave an error, and {self._most:,} may; the last: "
                f"{error.summary}",
                hint="mend the data or the map, or allow more (--max-errors)",
            ) from error
