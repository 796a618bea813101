"""The command line."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ratioscope.cli import check, compare, diagnose, panels, report, run, sweep, sync
from ratioscope.text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = (run, report, compare, diagnose, sweep, check, sync, panels)
_INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; 0 if it did what it was asked, 1 if not, 2 if it was asked wrongly."""
    parser = argparse.ArgumentParser(prog="ratioscope", description="See what the vLLM correction does to a GRPO run.")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in COMMANDS:
        command.add(commands)
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run_command(arguments))
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt):
            print("ratioscope: interrupted", file=sys.stderr)
            return _INTERRUPTED
        for single in error.exceptions if isinstance(error, ExceptionGroup) else [error]:
            print(f"ratioscope: {type(single).__name__}: {plain(' '.join(str(single).split()))}", file=sys.stderr)
        return 1
