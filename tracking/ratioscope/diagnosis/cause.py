"""Cause: a defect or setting that a diagnosis looks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratioscope.diagnosis.findings import Sign
    from ratioscope.diagnosis.run import Run


@dataclass(frozen=True)
class Cause:
    """A defect or setting that makes the two engines' log-probabilities differ.

    Attributes:
        name: identifier; stored in journals and used by scripts.
        meaning: one line.
        check: returns the cause's sign in a run, or None if it does not show; raises ``Unchecked`` without its data.
        remedy: what to do about it.
        source: public report, or "derived".
        explains: causes whose signs are only consequences of this one.
        confirms: settings of which this one is the measured effect; a finding that confirms is no news.
        from_config: the run config decides, so the check holds even where both sides are the same numbers.
    """

    name: str
    meaning: str
    check: Callable[[Run], Sign | None]
    remedy: str
    source: str
    explains: tuple[str, ...] = ()
    confirms: tuple[str, ...] = ()
    from_config: bool = False
