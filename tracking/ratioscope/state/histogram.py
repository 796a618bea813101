"""Signed log-linear histogram of a log-ratio: fine near 0, never overflowing, the same bits on every device.

Each octave of ``|d|`` from 2**-20 to 2**10 is cut into 32 equal parts, once for each sign, around one bucket
for zero. The bucket is read from the float's own bits (exponent and five leading mantissa bits), so no
transcendental function is called and every boundary is a float32. The layout is the log-linear one of
HdrHistogram, with the signed halves and zero bucket of an OpenTelemetry exponential histogram.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from numpy.typing import NDArray

SUB_BUCKET_BITS = 5
"""2**5 = 32 buckets an octave: a bucket is at most 1/32 of its value wide."""
MIN_EXPONENT = -20
"""Log-ratios below 2**-20 nats (about 1e-6) count as zero."""
MAX_EXPONENT = 10
"""Log-ratios of 2**10 = 1024 nats and more count as beyond the histogram."""

_PER_SIDE = (MAX_EXPONENT - MIN_EXPONENT) << SUB_BUCKET_BITS
ZERO = _PER_SIDE + 1
"""Index of the zero bucket; index 0 holds what lies below -1024 and the last what lies above."""
N_BUCKETS = 2 * ZERO + 1

MANTISSA_BITS = 23
EXPONENT_BIAS = 127
"""Of a float32."""

MIN_VIEW_EXPONENT = MIN_EXPONENT + 1
MAX_VIEW_EXPONENT = MAX_EXPONENT - 5
_VIEW_BINS_PER_SIDE = 32


def bucket_index(values: torch.Tensor) -> torch.Tensor:
    """Bucket of each value.

    Args:
        values: float32 of any shape, in nats; must not be NaN (an infinity lands in an outer bucket).

    Returns:
        int64 of the same shape, in ``[0, N_BUCKETS)``.
    """
    import torch  # slow to import, and reading a journal needs none of it

    # Exponent and leading mantissa bits number the buckets of one side in ascending order, from 1 on.
    offset = ((EXPONENT_BIAS + MIN_EXPONENT) << SUB_BUCKET_BITS) - 1
    magnitude = (values.view(torch.int32) & 0x7FFFFFFF) >> (MANTISSA_BITS - SUB_BUCKET_BITS)
    magnitude = (magnitude - offset).clamp_(0, _PER_SIDE + 1)
    return torch.copysign(magnitude, values).add_(ZERO).to(torch.int64)  # small integers are exact in float32


def count(parts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """One histogram for each part, all at once and without a host sync.

    Args:
        parts: values and a mask, each: float32 ``(M,)``, in nats, not NaN wherever the mask is True; bool ``(M,)``.

    Returns:
        int64 ``(len(parts), N_BUCKETS)``. Integer addition is exact, so the order of rows, batches and ranks is
            immaterial.
    """
    import torch

    index = bucket_index(torch.cat([values for values, _ in parts]))
    for number, part in enumerate(index.split([len(values) for values, _ in parts])):
        if number:
            part.add_(number * N_BUCKETS)
    valid = torch.cat([mask for _, mask in parts]).to(torch.int64)
    counts = torch.zeros(len(parts) * N_BUCKETS, dtype=torch.int64, device=index.device)
    return counts.scatter_add_(0, index, valid).view(len(parts), N_BUCKETS)


def _boundaries() -> NDArray[np.float64]:
    """Upper boundary of each bucket but the last, ascending, ``(N_BUCKETS - 1,)``."""
    steps = np.arange(_PER_SIDE + 1)
    sub_buckets = 1 << SUB_BUCKET_BITS
    octave, part = steps // sub_buckets, steps % sub_buckets
    positive = np.ldexp(1.0 + part / sub_buckets, octave + MIN_EXPONENT)
    return np.concatenate([-positive[::-1], positive])


BOUNDARIES = _boundaries()
"""float64 ``(N_BUCKETS - 1,)``: bucket ``i`` lies between ``BOUNDARIES[i - 1]`` and ``BOUNDARIES[i]``."""


def representatives() -> NDArray[np.float64]:
    """The value that stands for each bucket, float64 ``(N_BUCKETS,)``; infinite for the two outer ones.

    It is ``2 l h / (l + h)``, which has the smallest worst relative error, ``(h - l) / (h + l)`` <= 1/65.
    """
    low, high = BOUNDARIES[:-1], BOUNDARIES[1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = 2.0 * low * high / (low + high)
    middle[ZERO - 1] = 0.0
    return np.concatenate([[-np.inf], middle, [np.inf]])


_REPRESENTATIVES = representatives()


def quantile(counts: NDArray[np.int64], q: float, *, minimum: float, maximum: float) -> float | None:
    """One of :func:`quantiles`; None if nothing was counted."""
    found = quantiles(counts, (q,), minimum=minimum, maximum=maximum)
    return found[0] if found else None


def quantiles(counts: NDArray[np.int64], qs: Sequence[float], *, minimum: float, maximum: float) -> list[float]:
    """Quantiles of the counted values by linear interpolation between order statistics' buckets.

    Args:
        counts: int64 ``(N_BUCKETS,)``.
        qs: each between 0 and 1.
        minimum: the exact smallest value, which bounds the answers.
        maximum: the exact largest value, which bounds the answers.

    Returns:
        The quantiles, within 1.6 % of the exact ones (2**-20 near zero); none if nothing was counted. Beyond 1024
            nats they are the minimum or the maximum.
    """
    cumulative = counts.cumsum()
    total = int(cumulative[-1])
    if total == 0:
        return []
    positions = np.multiply(qs, total - 1)
    below = np.floor(positions)
    at = cumulative.searchsorted([below, np.ceil(positions)], side="right")
    low, high = _REPRESENTATIVES[at].clip(minimum, maximum)
    found: list[float] = (low + (high - low) * (positions - below)).tolist()
    return found


@dataclass(frozen=True)
class Bins:
    """Even bins on the log-ratio, as trackers draw them.

    The first and the last bin also hold whatever lies beyond them, so the counts sum to all valid values.

    Attributes:
        counts: int64 ``(n,)``.
        edges: float64 ``(n + 1,)``, ascending and evenly spaced, in nats.
    """

    counts: NDArray[np.int64]
    edges: NDArray[np.float64]

    @property
    def total(self) -> int:
        """Number of values counted."""
        return int(self.counts.sum())

    def to_json(self) -> dict[str, Any]:
        """Counts and edges as plain lists."""
        return {"counts": self.counts.tolist(), "edges": self.edges.tolist()}


def even_bins(counts: NDArray[np.int64], exponent: int) -> Bins:
    """Regroups the buckets into 65 even bins of width ``2**exponent`` centred on 0; nothing is interpolated.

    The 63 inner bins reach to ``31.5 * 2**exponent``; their edges have at most six significant bits and are
    therefore bucket boundaries. The outer two hold the rest.

    Raises:
        ValueError: if the exponent is outside ``[MIN_VIEW_EXPONENT, MAX_VIEW_EXPONENT]``, where bins would not nest.
    """
    if not MIN_VIEW_EXPONENT <= exponent <= MAX_VIEW_EXPONENT:
        msg = f"got a view exponent of {exponent}; expected {MIN_VIEW_EXPONENT} to {MAX_VIEW_EXPONENT}, where bins nest"
        raise ValueError(msg)
    starts, edges = _view(exponent)
    return Bins(np.add.reduceat(counts, starts), edges)


@cache
def _view(exponent: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The first bucket of each even bin, and the bins' edges."""
    width = 2.0**exponent
    edges = (np.arange(2 * _VIEW_BINS_PER_SIDE, dtype=np.float64) - (_VIEW_BINS_PER_SIDE - 0.5)) * width
    # A positive boundary belongs to the bucket above it and a negative one to the bucket below: |d| decides.
    starts: NDArray[np.intp] = np.concatenate([[0], np.searchsorted(BOUNDARIES, edges) + 1])
    edges = np.asarray([edges[0] - width, *edges, edges[-1] + width], np.float64)
    edges.flags.writeable = False  # all bins of this width share it
    return starts, edges


def view_exponent(counts: NDArray[np.int64], *, minimum: float, maximum: float) -> int:
    """Width exponent that shows 99.9 % of the values with as much room again, for a run to choose once and keep."""
    tails = quantiles(counts, (0.0005, 0.9995), minimum=minimum, maximum=maximum)
    reach = max(map(abs, tails), default=0.0)
    if reach == 0.0:
        return -6
    exponent = int(np.ceil(np.log2(2.0 * reach / (_VIEW_BINS_PER_SIDE - 0.5))))
    return int(np.clip(exponent, MIN_VIEW_EXPONENT, MAX_VIEW_EXPONENT))


def to_sparse(counts: NDArray[np.int64]) -> dict[str, list[int]]:
    """Non-empty buckets and their counts, as JSON keeps them."""
    buckets = np.flatnonzero(counts)
    return {"buckets": buckets.tolist(), "counts": counts[buckets].tolist()}


def add_sparse(counts: NDArray[np.int64], sparse: Mapping[str, Any]) -> None:
    """Adds the counts that :func:`to_sparse` wrote; also counts by bucket, as the first journals had them."""
    if "buckets" in sparse:
        buckets, values = sparse["buckets"], sparse["counts"]
    else:
        buckets, values = [int(bucket) for bucket in sparse], list(sparse.values())
    # No bucket is twice in it. From a list, an array of numpy takes longer to make than one of Python.
    counts[np.asarray(array("q", buckets))] += np.asarray(array("q", values))
