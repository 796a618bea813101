"""The command line."""

from __future__ import annotations

import argparse
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ratioscope.journal_target import Target
    from ratioscope.sync import Progress

_DETAILS = ("headline", "standard", "full")
_INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; 0 if it did what it was asked, 1 if not, 2 if it was asked wrongly."""
    parser = argparse.ArgumentParser(prog="ratioscope", description="See what the vLLM correction does to a GRPO run.")
    commands = parser.add_subparsers(dest="command", required=True)
    sync = commands.add_parser("sync", help="deliver from a journal what trackers have not received")
    sync.add_argument("path", help="a run's output directory, or its journal")
    sync.add_argument("--to", action="append", default=[], metavar="TRACKER", help="a tracker by name (repeatable)")
    sync.add_argument("--run", metavar="ID", help="deliver into the run with this id; needs one --to")
    sync.add_argument("--detail", choices=_DETAILS, default="standard", help="which scalars (default: standard)")
    arguments = parser.parse_args(argv)
    if arguments.run is not None and len(set(arguments.to)) != 1:
        sync.error("--run needs exactly one --to")
    return _sync(arguments)


def _sync(arguments: argparse.Namespace) -> int:
    from ratioscope.sync import sync

    try:
        with _bar() as bar:
            delivered = sync(arguments.path, to=arguments.to, run=arguments.run, detail=arguments.detail, progress=bar)
    except (Exception, KeyboardInterrupt) as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        text = "interrupted" if interrupted else f"{type(error).__name__}: {' '.join(str(error).split())}"
        print(f"ratioscope: {text}", file=sys.stderr)
        return _INTERRUPTED if interrupted else 1
    if not any(delivered.values()):
        print("Nothing is missing.")
    for name, count in delivered.items():
        if count:
            print(f"{name}: {count} rows delivered")
    return 0


@contextmanager
def _bar() -> Iterator[Progress | None]:
    """A progress bar where ``rich`` is installed and somebody looks; the terminal is as before at the end."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
    except ImportError:
        yield None
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    tasks: dict[int, TaskID] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console) as bar:

        def show(target: Target, *, delivered: int, missing: int) -> None:
            if target.id not in tasks:
                tasks[target.id] = bar.add_task(target.tracker)
            bar.update(tasks[target.id], completed=delivered, total=delivered + missing)

        yield show
