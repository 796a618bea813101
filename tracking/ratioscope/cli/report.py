"""``ratioscope report``: what a run's numbers say, in the terminal, as a page and as pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.cli.outputs import (
    PATH_HELP,
    add_outputs,
    check_outputs,
    console,
    uncollected,
    write_outputs,
)

if TYPE_CHECKING:
    import argparse

    from ratioscope.runs.timeline import Timeline

EVERY_S = 10.0
"""Seconds between two looks at a run that is watched."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describes the command."""
    text = "show what a run's numbers say, in the terminal and as a page"
    parser = commands.add_parser("report", help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("path", help=PATH_HELP)
    add_outputs(parser, "report.html")
    watch = "look again every SECONDS (default: 10) until Ctrl-C, also where the run has not begun"
    parser.add_argument("--watch", type=float, nargs="?", const=EVERY_S, metavar="SECONDS", help=watch)
    parser.set_defaults(run_command=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Does it."""
    if arguments.watch is not None and not 0.1 <= arguments.watch < 1e6:
        arguments.parser.error(f"--watch: got {arguments.watch:g}; expected seconds from 0.1 on")
    if arguments.watch is not None and arguments.png is not None:
        arguments.parser.error("--png takes seconds for each figure and does not go with --watch; call it once more")
    check_outputs(arguments)
    from ratioscope.report.terminal import render
    from ratioscope.runs.read import read

    if arguments.watch is not None:
        from ratioscope.cli.watch import watch

        return watch(arguments.path, arguments.watch, lambda timeline: _write(arguments, timeline))
    with uncollected():
        timeline = read(arguments.path)
        terminal = console()
        terminal.print(render(timeline))
        for line in _write(arguments, timeline) or ["For a page: -o report.html"]:
            terminal.print(line, soft_wrap=True)
    return 0


def _write(arguments: argparse.Namespace, timeline: Timeline) -> list[str]:
    html = None
    if arguments.output is not None:
        from ratioscope.report.page.page import report_html

        html = report_html(timeline)
    return write_outputs(arguments, [timeline], html)
