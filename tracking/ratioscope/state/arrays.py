"""What a batch is reduced to."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

    from ratioscope.state.tables import Top


class State(NamedTuple):
    """The fields of ``RatioSummary`` but its correction, in order; described there."""

    maxima: torch.Tensor
    sums: torch.Tensor
    counts: torch.Tensor
    histograms: torch.Tensor
    lengths: torch.Tensor
    top: Top


class Reduced(NamedTuple):
    """What a kernel makes of a batch.

    Attributes:
        state: all of it.
        n: int64 ``(B,)`` valid tokens of each row.
        row_d: float64 ``(B,)`` sums of log-ratios, exact and then rounded to float32.
        counts_rule: whether the state has what the rule did; otherwise it is as if there were no rule.
    """

    state: State
    n: torch.Tensor
    row_d: torch.Tensor
    counts_rule: bool
