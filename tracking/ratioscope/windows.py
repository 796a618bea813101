"""Windows: what was observed since the last flush, one state for each split."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ratioscope.summary import RatioSummary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratioscope.correction import Correction


class Windows:
    """The open window of each split, on the device of its last batch."""

    def __init__(self) -> None:
        self._open: dict[str, RatioSummary] = {}

    def add(self, split: str, summary: RatioSummary) -> None:
        """Adds a batch."""
        window = self._open.get(split)
        self._open[split] = summary if window is None else window.to(summary.maxima.device).merge(summary)

    @contextmanager
    def counting_failure(self, split: str, correction: Correction | None) -> Iterator[None]:
        """Counts an exception of the block in the window, and lets it pass."""
        try:
            yield
        except Exception:
            self._open[split] = self._open.get(split, RatioSummary.empty(correction)).failed()
            raise

    def take(self, split: str, correction: Correction | None) -> RatioSummary:
        """Closes a window; an empty summary where nothing was observed."""
        return self._open.pop(split, RatioSummary.empty(correction))
