"""``ratioscope sync``: delivers from a journal the rows that trackers have not received."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, get_args

from ratioscope.metrics.metric import Detail

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from ratioscope.delivery.sync import Progress
    from ratioscope.journal.targets import Target


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describes the command."""
    sync = commands.add_parser("sync", help="deliver from a journal what trackers have not received")
    sync.add_argument("path", help="a run's output directory, or its journal")
    sync.add_argument("--to", action="append", default=[], metavar="TRACKER", help="a tracker by name (repeatable)")
    sync.add_argument("--run", metavar="ID", help="deliver into the run with this id; needs one --to")
    sync.add_argument("--detail", choices=get_args(Detail), help="which scalars (default: those of the training)")
    sync.set_defaults(run_command=run, parser=sync)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    from ratioscope.delivery.sync import sync

    if arguments.run is not None and len(set(arguments.to)) != 1:
        arguments.parser.error("--run needs exactly one --to")
    with _bar() as bar:
        delivered = sync(arguments.path, to=arguments.to, run=arguments.run, detail=arguments.detail, progress=bar)
    if not any(delivered.values()):
        print("Nothing is missing.")
    for name, count in delivered.items():
        if count:
            print(f"{name}: {count} rows delivered")
    return 0


@contextmanager
def _bar() -> Iterator[Progress | None]:
    """Yields the callback of a progress bar; None without ``rich`` or without a terminal."""
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

        def update(target: Target, *, delivered: int, missing: int) -> None:
            if target.id not in tasks:
                tasks[target.id] = bar.add_task(target.tracker)
            bar.update(tasks[target.id], completed=delivered, total=delivered + missing)

        yield update
