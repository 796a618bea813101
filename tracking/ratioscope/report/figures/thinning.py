"""Fewer points on a line, without losing a spike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_POINTS = 2000
"""Points that a line of a page has at most."""


def thin(values: NDArray[np.float64], limit: int = MAX_POINTS) -> NDArray[np.intp]:
    """Indices of the points that stay: the first, the last, and of each even stretch the smallest and the largest.

    Args:
        values: float64 ``(n,)``, finite.
        limit: most points that stay, at least 4.

    Returns:
        Ascending indices, all ``n`` of them where these are no more than the limit.
    """
    n = len(values)
    if n <= limit:
        return np.arange(n)
    edges = np.linspace(0, n, (limit - 2) // 2 + 1).astype(np.intp)
    kept = {0, n - 1}
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        stretch = values[start:end]
        kept.update((start + int(stretch.argmin()), start + int(stretch.argmax())))
    return np.array(sorted(kept), dtype=np.intp)


def spread(n: int, limit: int) -> list[int]:
    """At most ``limit`` of the indices below ``n``, evenly, with the first and the last."""
    return sorted(set(np.linspace(0, n - 1, min(n, limit)).round().astype(int).tolist()))
