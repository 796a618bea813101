"""``ratioscope panels``: makes a tracker display runs at a glance."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

ENTRY_POINTS = "ratioscope.panels"
"""Entry-point group: a tracker's name -> a module with ``HELP``, ``add_arguments(parser)`` and ``run(arguments)``."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describes the command, with one subcommand per tracker."""
    panels = commands.add_parser("panels", help="have a tracker show ratios, histograms and modified fractions")
    trackers = panels.add_subparsers(dest="tracker", required=True)
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        module: Any = entry.load()
        parser = trackers.add_parser(entry.name, help=module.HELP, description=module.HELP)
        module.add_arguments(parser)
        parser.set_defaults(run_command=module.run)
