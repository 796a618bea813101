"""``ratioscope check``: checks a run against limits, for CI and job scripts."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ratioscope.cli.arguments import PATH_HELP, Steps, add_json, add_steps, failure, sentence
from ratioscope.text import count, plain, steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ratioscope.diagnosis import Diagnosis, Finding
    from ratioscope.runs.limits import Limit, Verdict
    from ratioscope.runs.timeline import Curve

HOLDS, VIOLATED, UNREADABLE = 0, 1, 3
"""Exit codes; 2 is wrong usage."""
SCHEMA = 1
"""Version of the JSON output."""
_AT = {"worst": "worst", "last": "last", "median": "median", "any": "best"}
"""Choices of ``--at``, each with the name of the window that it judges."""
_CODES = "exit codes: 0 every limit holds and no finding fails, 1 otherwise, 2 wrong usage, 3 the run cannot be read"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describes the command."""
    text = "check that a run keeps within limits, for CI and job scripts"
    parser = commands.add_parser("check", help=text, description=sentence(text), epilog=_CODES)
    parser.add_argument("path", help=PATH_HELP)
    example = "such as modified/fraction=0.2; the part ratioscope/ of a key may be left out (repeatable)"
    for kind, bound in (("max", "largest"), ("min", "smallest")):
        parser.add_argument(
            f"--{kind}",
            dest="limits",
            action="append",
            type=partial(_limit, kind),
            metavar="KEY=VALUE",
            help=f"{bound} value that holds, {example}",
        )
    at = "what must hold: every window, the last, their median, or at least one (default: worst, every window)"
    parser.add_argument("--at", choices=_AT, default="worst", help=at)
    add_steps(parser)
    missing = "a statistic that was not measured does not fail"
    parser.add_argument("--allow-missing", action="store_true", help=missing)
    fail_on = "also diagnose the run, and fail on a finding of this level or a graver one"
    parser.add_argument("--fail-on", choices=("error", "warning"), help=fail_on)
    add_json(parser)
    parser.set_defaults(run_command=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    if not arguments.limits and not arguments.fail_on:
        arguments.parser.error("nothing to check; expected at least one --max KEY=VALUE, --min KEY=VALUE or --fail-on")
    from ratioscope.runs.limits import judge, read_curves

    try:
        curves = read_curves(arguments.path) if arguments.limits else {}
        diagnosis = _diagnosis(arguments)
    except Exception as error:
        print(f"ratioscope: {failure(error)}", file=sys.stderr)
        if arguments.json:
            print(json.dumps(_as_json(arguments, None, error=failure(error))))
        return UNREADABLE
    limits = _limits(arguments, curves)
    verdicts = [judge(limit, curves.get(limit.key), at=arguments.at, steps=arguments.steps) for limit in limits]
    outcome = _Outcome(verdicts, diagnosis, arguments.fail_on, allow_missing=arguments.allow_missing)
    if arguments.json:
        print(json.dumps(_as_json(arguments, outcome, error=None), allow_nan=False))
    else:
        for line in (*(_line(verdict, arguments) for verdict in verdicts), *_diagnosis_lines(outcome)):
            print(line)
    return HOLDS if outcome.holds else VIOLATED


@dataclass(frozen=True)
class _Outcome:
    """Outcome of all checks.

    Attributes:
        verdicts: one per limit.
        diagnosis: diagnosis of the run, if findings can fail.
        fail_on: lowest level of a finding that fails; None if findings cannot fail.
        allow_missing: whether statistics and windows that were not measured pass.
    """

    verdicts: Sequence[Verdict]
    diagnosis: Diagnosis | None
    fail_on: str | None
    allow_missing: bool

    @property
    def failing(self) -> list[Finding]:
        """Findings that fail."""
        levels = ("error",) if self.fail_on == "error" else ("error", "warning")
        return (
            []
            if self.diagnosis is None
            else [finding for finding in self.diagnosis.findings if finding.level in levels]
        )

    @property
    def undiagnosed(self) -> bool:
        """True if a diagnosis was requested of a run without a window of training."""
        return self.diagnosis is not None and not self.diagnosis.windows

    @property
    def holds(self) -> bool:
        """True if everything passes."""
        passing = ("holds", "not measured") if self.allow_missing else ("holds",)
        limits_hold = all(verdict.status in passing for verdict in self.verdicts)
        return limits_hold and not self.failing and (self.allow_missing or not self.undiagnosed)


def _diagnosis(arguments: argparse.Namespace) -> Diagnosis | None:
    """Diagnoses the run, if findings can fail."""
    if arguments.fail_on is None:
        return None
    from ratioscope.diagnosis import diagnose
    from ratioscope.diagnosis.read import read_run

    return diagnose(read_run(arguments.path, steps=arguments.steps))


def _limit(kind: str, given: str) -> tuple[str, str, float]:
    """Reads key, kind and value of ``KEY=VALUE``."""
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
    """Returns the limits with full keys; an unknown key is wrong usage."""
    from ratioscope.runs.limits import Limit, full_key

    limits = []
    for name, kind, value in arguments.limits or ():
        try:
            limits.append(Limit(full_key(name, curves), kind, value))
        except KeyError as unknown:
            arguments.parser.error(f"--{kind}: {unknown.args[0]}")
    return limits


def _line(verdict: Verdict, arguments: argparse.Namespace) -> str:
    """Describes a limit and its verdict."""
    from ratioscope.metrics.metric import PREFIX

    limit = verdict.limit
    condition = f"{limit.key.replace(PREFIX, '', 1)} {'<=' if limit.kind == 'max' else '>='} {limit.value:g}"
    if verdict.value is None:
        mark = "skip" if arguments.allow_missing else "FAIL"
        where = "" if arguments.steps == Steps() else f" in {arguments.steps}"
        return f"{mark}  {condition}: not measured{where}"
    mark = "ok  " if verdict.status == "holds" else "FAIL"
    step = "" if verdict.step is None else f" at step {verdict.step}"
    outside = f", {verdict.violations:,} outside" if verdict.violations else ""
    windows = f"{_AT[arguments.at]} of {count(verdict.windows, 'window')}{outside}"
    read_from = f"; read from {verdict.read_from}" if verdict.read_from else ""
    return f"{mark}  {condition}: {verdict.value:.6g}{step} ({windows}){read_from}"


def _diagnosis_lines(outcome: _Outcome) -> Iterator[str]:
    """Describes failing findings, or that there are none."""
    for finding in outcome.failing:
        text = plain(finding.evidence, 1000)
        yield f"FAIL  {finding.level} {finding.name} in {steps(*finding.steps)}: {text}"
    if outcome.undiagnosed and not outcome.allow_missing:
        yield "FAIL  no window of training to diagnose"
    elif outcome.diagnosis is not None and not outcome.failing:
        passed, unchecked = len(outcome.diagnosis.passed), len(outcome.diagnosis.not_checked)
        yield (
            f"ok    no finding of level {outcome.fail_on} or above "
            f"({passed} causes checked and clean, {unchecked} not checked)"
        )


def _as_json(arguments: argparse.Namespace, outcome: _Outcome | None, *, error: str | None) -> dict[str, Any]:
    diagnosis = None if outcome is None else outcome.diagnosis
    return {
        "schema": SCHEMA,
        "path": str(arguments.path),
        "at": arguments.at,
        "steps": arguments.steps.to_json(),
        "allow_missing": arguments.allow_missing,
        "holds": None if outcome is None else outcome.holds,
        "fail_on": arguments.fail_on,
        "diagnosis": None if diagnosis is None else diagnosis.to_json(),
        "limits": [] if outcome is None else [verdict.to_json() for verdict in outcome.verdicts],
        "error": error,
    }
