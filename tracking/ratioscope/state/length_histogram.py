"""A histogram over row lengths with what the rule did in each bucket, from which quartiles of length follow.

Lengths below 16 have a bucket each; above, each octave is cut into eight, so a bucket is at most 1/8 of its length
wide. As in :mod:`ratioscope.state.histogram` the bucket is read from the float's bits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ratioscope.state.constant_tensors import constant
from ratioscope.state.histogram import EXPONENT_BIAS, MANTISSA_BITS

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

LENGTH_COUNTS = ("rows", "ratios", "modified")
"""Live rows, their ratios at the level of the mode, and how many of these were modified; 0 without a rule."""

MAX_OCTAVE = 20
"""Rows of 2**20 tokens and more are in the last bucket."""

_SUB_BUCKET_BITS = 3
_SUB_BUCKETS = 1 << _SUB_BUCKET_BITS
N_LENGTHS = (MAX_OCTAVE << _SUB_BUCKET_BITS) + 1

MANTISSA_SHIFT = MANTISSA_BITS - _SUB_BUCKET_BITS
OFFSET = EXPONENT_BIAS << _SUB_BUCKET_BITS
"""A bucket is the float's bits without all but the mantissa's first three, less this."""


_BOUNDARIES = tuple(
    math.ceil(math.ldexp(1.0 + (step % _SUB_BUCKETS) / _SUB_BUCKETS, step // _SUB_BUCKETS))
    for step in range(1, N_LENGTHS)
)
"""Smallest integer at or above the lower end of each bucket but the first; buckets without an integer share theirs."""


def bucket_index(lengths: torch.Tensor) -> torch.Tensor:
    """Bucket of each length, int64 in ``[0, N_LENGTHS)``; a length of 0 is put with 1."""
    import torch

    # Lengths are integers: a bucket's lower end is at or below one exactly where the end rounded up is.
    return torch.bucketize(lengths, constant(_BOUNDARIES, lengths.device, torch.int64), right=True)


def count(lengths: torch.Tensor, ratios: torch.Tensor, modified: torch.Tensor) -> torch.Tensor:
    """Counts by bucket of length, without a host sync.

    Args:
        lengths: int64 ``(B,)`` valid tokens of each row; rows of 0 are left out.
        ratios: int64 ``(B,)`` ratios of each row at the level of the rule; 0 without a rule.
        modified: int64 ``(B,)`` how many of them were modified.

    Returns:
        int64 ``(len(LENGTH_COUNTS), N_LENGTHS)``.
    """
    import torch  # slow to import, and reading a run needs none of it

    values = torch.stack([lengths > 0, ratios, modified])  # int64, as the counts are
    counts = torch.zeros(len(LENGTH_COUNTS), N_LENGTHS, dtype=torch.int64, device=lengths.device)
    return counts.scatter_add_(1, bucket_index(lengths).expand_as(values), values)


def quartile(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Quartile of each bucket, 0 to 3: that of the bucket's middle row. A bucket is never cut.

    Args:
        rows: int64 ``(N_LENGTHS,)`` rows of each bucket.
    """
    middle = np.cumsum(rows) - 0.5 * rows
    return np.clip(np.ceil(4.0 * middle / max(int(rows.sum()), 1)) - 1, 0, 3).astype(np.int64)
