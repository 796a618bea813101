"""How commands read ranges: of steps, and of bounds to try."""

from __future__ import annotations

import argparse
from dataclasses import dataclass


@dataclass(frozen=True)
class Steps:
    """A range of steps, both ends included.

    Attributes:
        first: None for no lower end.
        last: None for no upper end.
    """

    first: int | None = None
    last: int | None = None

    def __contains__(self, step: int) -> bool:
        return (self.first is None or step >= self.first) and (self.last is None or step <= self.last)

    def __str__(self) -> str:
        if self.first is None:
            return "all steps" if self.last is None else f"steps up to {self.last}"
        return f"steps from {self.first}" if self.last is None else f"steps {self.first} to {self.last}"

    def to_json(self) -> list[int | None]:
        """Both ends."""
        return [self.first, self.last]


def parse_steps(text: str) -> Steps:
    """Reads ``100:200``, ``100:``, ``:200`` or ``100``.

    Raises:
        argparse.ArgumentTypeError: if it is none of these.
    """
    first, colon, last = text.partition(":")
    try:
        ends = [int(end) if end.strip() else None for end in (first, last if colon else first)]
    except ValueError:
        ends = [None, None]
    if ends == [None, None] or (ends[0] is not None and ends[1] is not None and ends[0] > ends[1]):
        msg = f"got {text!r}; expected steps as 100:200, 100:, :200 or 100"
        raise argparse.ArgumentTypeError(msg)
    return Steps(*ends)
