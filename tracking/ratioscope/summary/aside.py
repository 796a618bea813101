"""Summaries of what is measured beside a batch's ratios, to be merged into the window that has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.state.slots import COUNTS, MAXIMA, SUMS
from ratioscope.summary.summary import RatioSummary

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from ratioscope.correction.rule import Rule


def aside(
    correction: Rule | None,
    device: torch.device,
    *,
    maxima: Mapping[str, torch.Tensor] | None = None,
    sums: Mapping[str, torch.Tensor] | None = None,
    counts: Mapping[str, torch.Tensor] | None = None,
) -> RatioSummary:
    """A summary that holds these slots and nothing else.

    Args:
        correction: the rule of the window that it is to be merged into.
        device: of the values.
        maxima: by name in ``slots.MAXIMA``, each a scalar.
        sums: by name in ``slots.SUMS``.
        counts: by name in ``slots.COUNTS``.
    """
    summary = RatioSummary.empty(correction, device=device)
    for names, state, values in (
        (MAXIMA, summary.maxima, maxima),
        (SUMS, summary.sums, sums),
        (COUNTS, summary.counts, counts),
    ):
        for name, value in (values or {}).items():
            state[names.index(name)] = value
    return summary
