"""``ratioscope compare``: compares runs in the terminal, as a page and as pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.cli.arguments import PATH_HELP, add_outputs, sentence
from ratioscope.cli.outputs import check_outputs, console, write_outputs

if TYPE_CHECKING:
    import argparse


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describes the command."""
    text = "show runs against each other, in the terminal and as a page"
    parser = commands.add_parser("compare", help=text, description=sentence(text))
    parser.add_argument("paths", nargs="+", metavar="path", help=f"two or more runs, each {PATH_HELP}")
    add_outputs(parser, "compare.html")
    parser.set_defaults(run_command=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    if len(arguments.paths) < 2:
        arguments.parser.error("got one run; expected two or more (for a single one: ratioscope report)")
    check_outputs(arguments)
    from ratioscope.report.terminal import render_comparison
    from ratioscope.runs.read import read_many

    timelines = read_many(arguments.paths)
    terminal = console()
    terminal.print(render_comparison(timelines))
    html = None
    if arguments.output is not None:
        from ratioscope.report.page.page import compare_html

        html = compare_html(timelines)
    for line in write_outputs(arguments, timelines, html) or ["Write an HTML page with: -o compare.html"]:
        terminal.print(line, soft_wrap=True)
    return 0
