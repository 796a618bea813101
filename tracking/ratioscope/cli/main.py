"""The command line of ratioscope."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ratioscope.cli import check, compare, diagnose, panels, report, run, sweep, sync
from ratioscope.cli.arguments import Parser, failure

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = (run, report, compare, diagnose, sweep, check, sync, panels)
_INTERRUPTED = 130
"""Exit code after Ctrl-C, by the convention of shells."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns 0 if it succeeded, 1 if not; exits with 2 on wrong usage."""
    parser = Parser(prog="ratioscope", description="See what the vLLM correction does to a GRPO run.")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in COMMANDS:
        command.add(commands)
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run_command(arguments))
    except KeyboardInterrupt:
        print("ratioscope: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except Exception as error:
        for single in error.exceptions if isinstance(error, ExceptionGroup) else [error]:
            print(f"ratioscope: {failure(single)}", file=sys.stderr)
        return 1
