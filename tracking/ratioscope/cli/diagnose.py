"""``ratioscope diagnose``: names the cause of a mismatch."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from ratioscope.cli.arguments import PATH_HELP, add_json, add_steps, failure, sentence
from ratioscope.cli.outputs import console
from ratioscope.text import count, plain

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from rich.text import Text

    from ratioscope.diagnosis import Diagnosis, Finding
    from ratioscope.event import Event

CLEAN, FOUND, UNREADABLE = 0, 1, 3
"""Exit codes; 2 is wrong usage."""
SCHEMA = 1
"""Version of the JSON output."""
_STYLES = {"error": "bold red", "warning": "bold yellow", "info": "bold cyan"}
_CODES = "exit codes: 0 nothing above info, 1 a warning or an error, 2 wrong usage, 3 the run cannot be read"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describes the command."""
    text = "say what caused a mismatch, with evidence and remedy, and what could not be checked"
    parser = commands.add_parser("diagnose", help=text, description=sentence(text), epilog=_CODES)
    parser.add_argument("path", help=PATH_HELP)
    add_steps(parser)
    add_json(parser)
    parser.set_defaults(run_command=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    from ratioscope.diagnosis import diagnose
    from ratioscope.diagnosis.read import read_events, read_run

    if not arguments.json:
        from ratioscope.extras import require

        require("rich")
    try:
        diagnosis = diagnose(read_run(arguments.path, steps=arguments.steps))
        events = [event for event in read_events(arguments.path) if event.step in arguments.steps or not event.step]
    except Exception as error:
        print(f"ratioscope: {failure(error)}", file=sys.stderr)
        if arguments.json:
            print(json.dumps(_as_json(arguments, None, failure(error), events=())))
        return UNREADABLE
    if arguments.json:
        print(json.dumps(_as_json(arguments, diagnosis, None, events=events), allow_nan=False))
    else:
        terminal = console()
        for line in (*_lines(arguments, diagnosis), *_event_lines(events)):
            terminal.print(line)
    return CLEAN if diagnosis.level == "info" else FOUND


def _as_json(
    arguments: argparse.Namespace, diagnosis: Diagnosis | None, error: str | None, *, events: Sequence[Event]
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "path": str(arguments.path),
        "asked": arguments.steps.to_json(),
        "diagnosis": None if diagnosis is None else diagnosis.to_json(),
        "events": [event.to_json() for event in events],
        "error": error,
    }


def _lines(arguments: argparse.Namespace, diagnosis: Diagnosis) -> Iterator[Text]:
    from rich.text import Text

    from ratioscope.report.verdict.cause import grave, nothing_found

    windows = f"{count(diagnosis.windows, 'window')} of training"
    span = "" if diagnosis.steps is None else f", steps {diagnosis.steps[0]} to {diagnosis.steps[1]}"
    yield Text(plain(str(arguments.path)), "bold").append(f"  {windows}{span}", "dim not bold")
    if diagnosis.foreign:
        yield Text()
        yield from _foreign_lines(diagnosis)
    for finding in diagnosis.findings:
        yield Text()
        yield from _finding_lines(finding)
    if not grave(diagnosis):
        yield Text()
        yield Text(nothing_found(diagnosis), "bold")
    yield Text()
    yield from _remaining_lines(diagnosis)


def _foreign_lines(diagnosis: Diagnosis) -> Iterator[Text]:
    """Explains the statistics of a third-party log."""
    from rich.text import Text

    from ratioscope.runs.foreign.adopt import sentence as explanation

    yield Text("Not ratioscope's own log. Statistics that were read from it:", "bold")
    for key, name in diagnosis.foreign.items():
        ours = f" = {name.ours}" if name.exact else f" for {name.ours}" if name.ours else ""
        yield Text(f"  {plain(key, 100)}{ours}  ").append(explanation(name), "dim")


def _finding_lines(finding: Finding) -> Iterator[Text]:
    from rich.text import Text

    from ratioscope.report.verdict.cause import location

    heading = Text(f"{finding.level.upper()}  ", _STYLES[finding.level]).append(finding.name, "bold")
    yield heading.append(f"  {finding.meaning} ({location(finding)})", "not bold")
    yield Text(f"  evidence: {plain(finding.evidence, 1000)}")
    yield Text(f"  remedy:   {finding.remedy}")
    yield Text(f"  source:   {finding.source}", "dim")


def _remaining_lines(diagnosis: Diagnosis) -> Iterator[Text]:
    """Lists the causes that are explained by a finding, clean, or not checked."""
    from rich.text import Text

    from ratioscope.report.verdict.cause import reasons

    if diagnosis.explained:
        yield Text(f"Also present, explained by the above: {', '.join(diagnosis.explained)}", "dim")
    if diagnosis.passed:
        yield Text(f"Checked and clean ({len(diagnosis.passed)}): {', '.join(diagnosis.passed)}", "green")
    if diagnosis.not_checked:
        yield Text(f"Not checked ({len(diagnosis.not_checked)}):", "bold")
        for why, names in reasons(diagnosis).items():
            yield Text(f"  {', '.join(names)}: {plain(why)}", "dim")


def _event_lines(events: Sequence[Event]) -> Iterator[Text]:
    """Lists the events that were reported during the run."""
    from rich.text import Text

    if events:
        yield Text("Reported during the run:", "bold")
    for event in events:
        cause = "" if event.because is None else f" (see {event.because})"
        yield Text(f"  step {event.step}: {event.name} {event.status}, {event.level}{cause}", "dim")
