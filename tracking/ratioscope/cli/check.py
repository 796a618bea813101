"""``ratioscope check``: whether a run keeps within limits, for CI and job scripts."""

from __future__ import annotations

import argparse
import json
import math
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from ratioscope.cli.outputs import PATH_HELP
from ratioscope.cli.ranges import Steps, parse_steps
from ratioscope.text import plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.diagnosis import Diagnosis, Finding
    from ratioscope.runs.limits import Limit, Verdict
    from ratioscope.runs.timeline import Curve

HOLDS, VIOLATED, UNREADABLE = 0, 1, 3
"""Exit codes; 2 is wrong usage."""
SCHEMA = 1
"""Version of what ``--json`` prints."""
_AT = ("worst", "last", "median", "any")
_CODES = "exit codes: 0 every limit holds and no finding fails, 1 otherwise, 2 wrong usage, 3 the run cannot be read"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describes the command."""
    text = "check that a run keeps within limits, for CI and job scripts"
    parser = commands.add_parser("check", help=text, description=f"{text[0].upper()}{text[1:]}.", epilog=_CODES)
    parser.add_argument("path", help=PATH_HELP)
    example = "such as modified/fraction=0.2; the part ratioscope/ of a key may be left out (repeatable)"
    for kind, what in (("max", "largest"), ("min", "smallest")):
        parser.add_argument(
            f"--{kind}",
            dest="limits",
            action="append",
            type=partial(_limit, kind),
            metavar="KEY=VALUE",
            help=f"{what} value that holds, {example}",
        )
    at = "what must hold: every window, the last, their median, or at least one (default: worst, every window)"
    parser.add_argument("--at", choices=_AT, default="worst", help=at)
    parser.add_argument("--steps", type=parse_steps, default=Steps(), metavar="A:B", help="only these windows")
    missing = "a statistic that was not measured does not fail"
    parser.add_argument("--allow-missing", action="store_true", help=missing)
    fail_on = "also diagnose the run, and fail on a finding of this level or a graver one"
    parser.add_argument("--fail-on", choices=("error", "warning"), help=fail_on)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run_command=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Does it."""
    if not arguments.limits and not arguments.fail_on:
        arguments.parser.error("nothing to check; expected at least one --max KEY=VALUE, --min KEY=VALUE or --fail-on")
    from ratioscope.runs.limits import judge, read_curves

    try:
        curves = read_curves(arguments.path) if arguments.limits else {}
        diagnosis = _diagnosis(arguments)
    except Exception as failure:
        text = f"{type(failure).__name__}: {' '.join(str(failure).split())}"
        print(f"ratioscope: {text}", file=sys.stderr)
        if arguments.json:
            print(json.dumps(_as_json(arguments, [], holds=None, error=text)))
        return UNREADABLE
    limits = _limits(arguments, curves)
    verdicts = [judge(limit, curves.get(limit.key), at=arguments.at, steps=arguments.steps) for limit in limits]
    passing = ("holds", "not measured") if arguments.allow_missing else ("holds",)
    failing = _failing(arguments, diagnosis)
    blind = diagnosis is not None and not diagnosis.windows and not arguments.allow_missing
    holds = all(verdict.status in passing for verdict in verdicts) and not failing and not blind
    if arguments.json:
        print(json.dumps(_as_json(arguments, verdicts, holds=holds, error=None, diagnosis=diagnosis), allow_nan=False))
    else:
        for verdict in verdicts:
            print(_line(verdict, arguments))
        for finding in failing:
            first, last = finding.steps
            print(f"FAIL  {finding.level} {finding.name} in steps {first} to {last}: {plain(finding.evidence, 1000)}")
        if blind:
            print("FAIL  no window of training to diagnose")
        elif diagnosis is not None and not failing:
            checked = f"{len(diagnosis.passed)} causes checked and clean, {len(diagnosis.not_checked)} not checked"
            print(f"ok    no finding of level {arguments.fail_on} or above ({checked})")
    return HOLDS if holds else VIOLATED


def _diagnosis(arguments: argparse.Namespace) -> Diagnosis | None:
    """The run's diagnosis, if findings may fail."""
    if arguments.fail_on is None:
        return None
    from ratioscope.diagnosis import diagnose
    from ratioscope.diagnosis.read import read_run

    return diagnose(read_run(arguments.path, steps=arguments.steps))


def _failing(arguments: argparse.Namespace, diagnosis: Diagnosis | None) -> list[Finding]:
    """The findings that fail."""
    levels = ("error",) if arguments.fail_on == "error" else ("error", "warning")
    return [] if diagnosis is None else [finding for finding in diagnosis.findings if finding.level in levels]


def _limit(kind: str, given: str) -> tuple[str, str, float]:
    """Key, kind and value of ``KEY=VALUE``."""
    key, _, text = given.rpartition("=")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not key.strip() or not math.isfinite(value):
        msg = f"got {given!r}; expected KEY=VALUE with a finite number, such as modified/fraction=0.2"
        raise argparse.ArgumentTypeError(msg)
    return key.strip(), kind, value


def _limits(arguments: argparse.Namespace, curves: Mapping[str, Curve]) -> list[Limit]:
    """The limits with their keys in full; an unknown one is wrong usage."""
    from ratioscope.runs.limits import Limit, full_key

    limits = []
    for name, kind, value in arguments.limits or ():
        try:
            limits.append(Limit(full_key(name, curves), kind, value))
        except KeyError as unknown:
            arguments.parser.error(f"--{kind}: {unknown.args[0]}")
    return limits


def _line(verdict: Verdict, arguments: argparse.Namespace) -> str:
    """What was asked and what was found."""
    from ratioscope.runs.limits import PREFIX

    limit = verdict.limit
    asked = f"{limit.key.replace(PREFIX, '', 1)} {'<=' if limit.kind == 'max' else '>='} {limit.value:g}"
    if verdict.value is None:
        mark = "skip" if arguments.allow_missing else "FAIL"
        where = "" if arguments.steps == Steps() else f" in {arguments.steps}"
        return f"{mark}  {asked}: not measured{where}"
    mark = "ok  " if verdict.status == "holds" else "FAIL"
    step = "" if verdict.step is None else f" at step {verdict.step}"
    named = {"worst": "worst", "last": "last", "median": "median", "any": "best"}[arguments.at]
    outside = f", {verdict.violations:,} outside" if verdict.violations else ""
    read_from = f"; read from {verdict.read_from}" if verdict.read_from else ""
    windows = f"{verdict.windows:,} window{'' if verdict.windows == 1 else 's'}"
    return f"{mark}  {asked}: {verdict.value:.6g}{step} ({named} of {windows}{outside}){read_from}"


def _as_json(
    arguments: argparse.Namespace,
    verdicts: list[Verdict],
    *,
    holds: bool | None,
    error: str | None,
    diagnosis: Diagnosis | None = None,
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "path": str(arguments.path),
        "at": arguments.at,
        "steps": arguments.steps.to_json(),
        "allow_missing": arguments.allow_missing,
        "holds": holds,
        "fail_on": arguments.fail_on,
        "diagnosis": None if diagnosis is None else diagnosis.to_json(),
        "limits": [verdict.to_json() for verdict in verdicts],
        "error": error,
    }
