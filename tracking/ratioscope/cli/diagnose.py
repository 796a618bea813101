"""``ratioscope diagnose``: what caused a mismatch."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from ratioscope.cli.outputs import PATH_HELP, console
from ratioscope.cli.ranges import Steps, parse_steps
from ratioscope.text import plain

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from rich.text import Text

    from ratioscope.diagnosis import Diagnosis, Finding
    from ratioscope.event import Event

CLEAN, FOUND, UNREADABLE = 0, 1, 3
"""Exit codes; 2 is wrong usage."""
SCHEMA = 1
"""Version of what ``--json`` prints."""
_STYLES = {"error": "bold red", "warning": "bold yellow", "info": "bold cyan"}
_CODES = "exit codes: 0 nothing above info, 1 a warning or an error, 2 wrong usage, 3 the run cannot be read"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describes the command."""
    text = "say what caused a mismatch, with evidence and remedy, and what could not be checked"
    parser = commands.add_parser("diagnose", help=text, description=f"{text[0].upper()}{text[1:]}.", epilog=_CODES)
    parser.add_argument("path", help=PATH_HELP)
    parser.add_argument("--steps", type=parse_steps, default=Steps(), metavar="A:B", help="only these windows")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run_command=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Does it."""
    from ratioscope.diagnosis import diagnose
    from ratioscope.diagnosis.read import read_events, read_run

    if not arguments.json:
        from ratioscope.extras import require

        require("rich")
    try:
        diagnosis = diagnose(read_run(arguments.path, steps=arguments.steps))
        told = [event for event in read_events(arguments.path) if event.step in arguments.steps or not event.step]
    except Exception as failure:
        text = f"{type(failure).__name__}: {plain(' '.join(str(failure).split()))}"
        print(f"ratioscope: {text}", file=sys.stderr)
        if arguments.json:
            print(json.dumps(_as_json(arguments, None, text, told=())))
        return UNREADABLE
    if arguments.json:
        print(json.dumps(_as_json(arguments, diagnosis, None, told=told), allow_nan=False))
    else:
        terminal = console()
        for line in (*_lines(arguments, diagnosis), *_told(told)):
            terminal.print(line)
    return CLEAN if diagnosis.level == "info" else FOUND


def _as_json(
    arguments: argparse.Namespace, diagnosis: Diagnosis | None, error: str | None, *, told: Sequence[Event]
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "path": str(arguments.path),
        "asked": arguments.steps.to_json(),
        "diagnosis": None if diagnosis is None else diagnosis.to_json(),
        "events": [event.to_json() for event in told],
        "error": error,
    }


def _lines(arguments: argparse.Namespace, diagnosis: Diagnosis) -> Iterator[Text]:
    from rich.text import Text

    windows = f"{diagnosis.windows:,} window{'' if diagnosis.windows == 1 else 's'} of training"
    steps = "" if diagnosis.steps is None else f", steps {diagnosis.steps[0]} to {diagnosis.steps[1]}"
    yield Text(plain(str(arguments.path)), "bold").append(f"  {windows}{steps}", "dim not bold")
    if diagnosis.foreign:
        yield Text()
        yield from _read_from(diagnosis)
    for finding in diagnosis.findings:
        yield Text()
        yield from _finding(finding)
    if all(finding.level == "info" for finding in diagnosis.findings):
        yield Text()
        yield Text("Nothing above info was found." if diagnosis.passed else "Nothing could be checked.", "bold")
    yield Text()
    if diagnosis.explained:
        yield Text(f"Shows too, and follows from the above: {', '.join(diagnosis.explained)}", "dim")
    if diagnosis.passed:
        yield Text(f"Checked and clean ({len(diagnosis.passed)}): {', '.join(diagnosis.passed)}", "green")
    if diagnosis.not_checked:
        yield Text(f"Not checked ({len(diagnosis.not_checked)}), which is not clean:", "bold")
        reasons: dict[str, list[str]] = {}
        for item in diagnosis.not_checked:
            reasons.setdefault(item.why, []).append(item.name)
        for why, names in reasons.items():
            yield Text(f"  {', '.join(names)}: {plain(why)}", "dim")


def _read_from(diagnosis: Diagnosis) -> Iterator[Text]:
    """What the numbers of a log are that ratioscope did not write."""
    from rich.text import Text

    from ratioscope.runs.foreign.adopt import sentence

    yield Text("Not ratioscope's own log. Read from it, as what:", "bold")
    for key, name in diagnosis.foreign.items():
        ours = f" = {name.ours}" if name.exact else f" for {name.ours}" if name.ours else ""
        yield Text(f"  {plain(key, 100)}{ours}  ").append(sentence(name), "dim")


def _told(events: Sequence[Event]) -> Iterator[Text]:
    """What was told while the run went on."""
    from rich.text import Text

    if events:
        yield Text("Reported during the run:", "bold")
    for event in events:
        follows = "" if event.because is None else f" (see {event.because})"
        yield Text(f"  step {event.step}: {event.name} {event.status}, {event.level}{follows}", "dim")


def _finding(finding: Finding) -> Iterator[Text]:
    from rich.text import Text

    first, last = finding.steps
    where = f"step {first}" if first == last else f"steps {first} to {last}"
    heading = Text(f"{finding.level.upper()}  ", _STYLES[finding.level]).append(finding.name, "bold")
    yield heading.append(f"  {finding.meaning} ({finding.confidence} confidence, {where})", "not bold")
    yield Text(f"  evidence: {plain(finding.evidence, 1000)}")
    yield Text(f"  remedy:   {finding.remedy}")
    yield Text(f"  source:   {finding.source}", "dim")
