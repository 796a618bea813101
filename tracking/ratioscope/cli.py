"""The command line."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.journal_target import Target
    from ratioscope.sync import Progress


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; 0 if it did what it was asked, 1 if not, 2 if it was asked wrongly."""
    parser = argparse.ArgumentParser(prog="ratioscope", description="See what the vLLM correction does to a GRPO run.")
    commands = parser.add_subparsers(dest="command", required=True)
    sync = commands.add_parser("sync", help="deliver from a journal what trackers have not received")
    sync.add_argument("path", help="a run's output directory, or its journal")
    sync.add_argument("--to", action="append", default=[], metavar="TRACKER", help="a tracker by name (repeatable)")
    sync.add_argument("--run", help="deliver into the run with this id")
    sync.add_argument("--detail", default="standard", help="headline, standard (default) or full")
    arguments = parser.parse_args(argv)
    return _sync(arguments)


def _sync(arguments: argparse.Namespace) -> int:
    from ratioscope.sync import sync

    try:
        delivered = sync(
            arguments.path,
            to=arguments.to,
            run=arguments.run,
            detail=arguments.detail,
            progress=_progress(),
        )
    except Exception as error:
        print(f"ratioscope: {type(error).__name__}: {error}", file=sys.stderr)
        print("What was delivered is noted; the same command goes on from there.", file=sys.stderr)
        return 1
    if not delivered:
        print("Nothing is missing.")
    for name, count in delivered.items():
        print(f"{name}: {count} rows delivered")
    return 0


def _progress() -> Progress | None:
    """A progress bar where ``rich`` is installed and somebody looks."""
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
    except ImportError:
        return None
    bar = Bar(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    tasks: dict[int, TaskID] = {}
    bar.start()

    def show(target: Target, *, delivered: int, missing: int) -> None:
        if target.id not in tasks:
            tasks[target.id] = bar.add_task(target.tracker)
        bar.update(tasks[target.id], completed=delivered, total=delivered + missing, refresh=True)
        if not missing:
            bar.refresh()

    import atexit

    atexit.register(bar.stop)
    return show
