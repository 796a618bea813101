"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ratioscope.runs import ACCEPTED
from ratioscope.secrets import outgoing

PATH_HELP = ACCEPTED
"""Help of an argument that names a run."""


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
        """Returns both ends."""
        return [self.first, self.last]


def parse_steps(text: str) -> Steps:
    """Reads ``100:200``, ``100:``, ``:200`` or ``100``.

    Raises:
        argparse.ArgumentTypeError: if the text has none of these forms.
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


def add_steps(parser: argparse.ArgumentParser) -> None:
    """Adds ``--steps``."""
    parser.add_argument("--steps", type=parse_steps, default=Steps(), metavar="A:B", help="only these windows")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds ``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_outputs(parser: argparse.ArgumentParser, example: str) -> None:
    """Adds the options for a page and for PNG files."""
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=f"write a page, such as {example}")
    parser.add_argument("--png", type=Path, metavar="FOLDER", help="write every figure as PNG")


def sentence(text: str) -> str:
    """Makes the description of a command out of its help."""
    return f"{text[0].upper()}{text[1:]}."


def failure(error: BaseException) -> str:
    """Puts type and message of an error on one line, without secrets and control characters."""
    return outgoing(f"{type(error).__name__}: {error}")


class Parser(argparse.ArgumentParser):
    """Parser whose errors quote arguments without secrets and control characters."""

    def error(self, message: str) -> NoReturn:
        """Prints the usage and one line, and exits with 2."""
        super().error(outgoing(message))
