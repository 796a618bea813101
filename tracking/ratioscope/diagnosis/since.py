"""Causes that show in the windows since a jump, where other weights are only one candidate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.diagnosis import positions, sampling, truncation
from ratioscope.diagnosis.findings import Unchecked

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratioscope.diagnosis.findings import Sign
    from ratioscope.diagnosis.run import Run

_CHECKS: tuple[tuple[str, Callable[[Run], Sign | None]], ...] = (
    ("shifted_alignment", positions.shifted),
    ("eos_tokens", positions.last_token),
    ("speculative_tail", positions.tail),
    ("mispaired_rows", positions.mispaired_rows),
    ("starts_at_a_position", positions.starts_at_a_position),
    ("support_truncation", truncation.support_truncation),
    ("temperature", sampling.temperature),
    ("constant_shift", sampling.constant_shift),
)
"""Causes that other weights do not lead to, the most specific first."""


def other_cause(run: Run) -> str | None:
    """Evidence of the first other cause in the windows since a jump; None if no other one shows."""
    if run.raised is None:
        return None
    for name, check in _CHECKS:
        try:
            sign = check(run.raised)
        except Unchecked:
            continue
        if sign is not None and sign.level != "info":
            return f"{name} shows in the windows since: {sign.evidence}"
    return None
