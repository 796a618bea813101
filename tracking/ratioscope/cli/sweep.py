"""``ratioscope sweep``: what another threshold would have done to a run, from its journal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ratioscope.cli.ranges import Steps, parse_steps
from ratioscope.sweep.grid import geomspace, parse_bounds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from ratioscope.correction.rule import Correction
    from ratioscope.record import Record
    from ratioscope.sweep.outcome import Outcome
    from ratioscope.sweep.recommend import SweptRun

SCHEMA = 1
"""Version of what ``--json`` prints."""
_FALLBACK = ("token_truncate", "sequence_mask")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describes the command."""
    text = "show what other thresholds would have done to a run"
    parser = commands.add_parser("sweep", help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("path", help="a run's output directory, or its journal")
    modes = "token_truncate, token_mask, sequence_truncate, sequence_mask (default: the run's own)"
    parser.add_argument("--modes", metavar="MODE[,MODE]", help=modes)
    cap = "upper bounds: a range 1.1:5, one ratio, none, or several with commas (default: 1.1:5)"
    parser.add_argument("--clip-max", metavar="BOUNDS", help=cap)
    floor = "lower bounds, likewise; upper ones are then the run's own unless given (default: the run's own)"
    parser.add_argument("--clip-min", metavar="BOUNDS", help=floor)
    parser.add_argument("--points", type=int, default=9, metavar="N", help="bounds in a range (default: 9)")
    parser.add_argument("--steps", type=parse_steps, default=Steps(), metavar="A:B", help="only these windows")
    parser.add_argument("--per-step", action="store_true", help="each window by itself: median and worst")
    most = "largest fraction of ratios that the recommended rule may change (default: 0.01)"
    parser.add_argument("--max-modified", type=float, default=0.01, metavar="X", help=most)
    least = "smallest ESS that it may leave, as a fraction (default: 0.9)"
    parser.add_argument("--min-ess", type=float, default=0.9, metavar="X", help=least)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run_command=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Does it.

    Raises:
        FileNotFoundError: if there is no journal.
        LookupError: if no window of training is in it, or in the range of steps.
        ImportError: if a table is asked for and ``rich`` is missing.
    """
    _check(arguments)
    from ratioscope.runs.pooled import PooledRun
    from ratioscope.sweep.recommend import Advice, advise, pool_of

    pooled = pool_of(PooledRun.from_records(_records(arguments)))
    if pooled is None:
        msg = f"got {arguments.path}, {arguments.steps}; expected windows of training, and there is none"
        raise LookupError(msg)
    rules = _rules(arguments, pooled.mode_rule)
    outcomes = {mode: [pooled.outcome(rule) for rule in listed] for mode, listed in rules.items()}
    judged = _judged(list(outcomes), pooled.mode_rule)
    advice = Advice(None, "")
    if judged:
        advice = advise(outcomes[judged], max_modified=arguments.max_modified, min_ess=arguments.min_ess)
    windows = list(_each(arguments, rules)) if arguments.per_step else None
    if arguments.json:
        print(json.dumps(_as_json(arguments, pooled, outcomes, windows, advice), allow_nan=False))
        return 0
    from ratioscope.cli.outputs import console
    from ratioscope.cli.sweep_table import render

    console().print(render(arguments.path, pooled, outcomes, windows=windows, advice=advice.text))
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuses what makes no sense, before anything is read."""
    from ratioscope.sweep.recommend import MODES

    error = arguments.parser.error
    if not 2 <= arguments.points <= 1000:
        error(f"--points: got {arguments.points}; expected 2 to 1000")
    for name in ("max_modified", "min_ess"):
        if not 0.0 <= getattr(arguments, name) <= 1.0:
            error(f"--{name.replace('_', '-')}: got {getattr(arguments, name):g}; expected a fraction from 0 to 1")
    arguments.modes = [mode.strip() for mode in arguments.modes.split(",")] if arguments.modes else []
    for mode in arguments.modes:
        if mode not in MODES:
            error(f"--modes: got {mode!r}; expected some of {', '.join(MODES)}, with commas")
    for name in ("clip_max", "clip_min"):
        asked = getattr(arguments, name)
        try:
            setattr(arguments, name, None if asked is None else parse_bounds(asked, arguments.points))
        except ValueError as wrong:
            error(f"--{name.replace('_', '-')}: {wrong}")
    if not arguments.json:
        try:
            import rich  # noqa: F401
        except ImportError:
            msg = 'a table needs rich: pip install "ratioscope[report]", or ask for --json'
            raise ImportError(msg) from None


def _records(arguments: argparse.Namespace) -> Iterator[Record]:
    """Yields the records in the range, one at a time."""
    from ratioscope.journal.reader import JournalReader
    from ratioscope.runs.read import tracker_of

    if tracker_of(arguments.path) is not None:
        arguments.parser.error(f"got {arguments.path}; a tracker has even bins only, expected a journal")
    with JournalReader(arguments.path) as journal:
        yield from journal.records(steps=arguments.steps)


def _rules(arguments: argparse.Namespace, own: Correction | None) -> dict[str, list[Correction]]:
    """What is tried, by mode."""
    from ratioscope.sweep.recommend import CAPS, grid

    rules = {}
    for mode in dict.fromkeys(arguments.modes or ([own.mode] if own else _FALLBACK)):
        like = own if own is not None and own.level == mode.partition("_")[0] else None
        lowers, uppers = arguments.clip_min, arguments.clip_max
        if uppers is None:
            uppers = [*geomspace(*CAPS, arguments.points)] if lowers is None else [like.upper if like else None]
        if lowers is None:
            lowers = [like.lower if like else None]
        rules[mode] = grid(mode, lowers=lowers, uppers=uppers, own=own)
    if not any(rules.values()):
        arguments.parser.error("no pair of these bounds is a rule; expected a lower bound below an upper one")
    return rules


def _judged(modes: list[str], own: Correction | None) -> str | None:
    """The mode that a recommendation is about: the run's own, or else the first of its level; None if none is."""
    if own is None:
        return modes[0]
    alike = [mode for mode in modes if mode.startswith(own.level)]
    return own.mode if own.mode in alike else next(iter(alike), None)


def _each(
    arguments: argparse.Namespace, rules: dict[str, list[Correction]]
) -> Iterator[tuple[int, dict[str, list[Outcome]]]]:
    """Step and outcomes of each window by itself."""
    from ratioscope.runs.pooled import PooledRun
    from ratioscope.sweep.recommend import pool_of

    for record in _records(arguments):
        single = pool_of(PooledRun.from_records([record]))
        if single is not None:
            yield record.step, {mode: [single.outcome(rule) for rule in listed] for mode, listed in rules.items()}


def _as_json(
    arguments: argparse.Namespace,
    pooled: SweptRun,
    outcomes: dict[str, list[Outcome]],
    windows: list[tuple[int, dict[str, list[Outcome]]]] | None,
    advice: Any,
) -> dict[str, Any]:
    from ratioscope.metrics import formulas

    view, own = pooled.view, pooled.own
    raw = {
        level: {
            "n": view.counts[f"{level}/n"],
            "mean": view.ratio_mean(level),
            "ess": formulas.ess_raw(view, level),
        }
        for level in ("token", "sequence")
    }
    return {
        "schema": SCHEMA,
        "path": str(arguments.path),
        "windows": pooled.windows,
        "steps": list(pooled.steps),
        "own": own and {"mode": own.mode, "lower": own.lower, "upper": own.upper},
        "own_rules": len(pooled.rules),
        "raw": raw,
        "outcomes": _listed(outcomes, own),
        "per_step": windows and [{"step": step, "outcomes": _listed(each, own)} for step, each in windows],
        "recommendation": {
            "max_modified": arguments.max_modified,
            "min_ess": arguments.min_ess,
            "outcome": advice.outcome and advice.outcome.to_json(),
            "text": advice.text or None,
        },
    }


def _listed(outcomes: dict[str, list[Outcome]], own: Correction | None) -> list[dict[str, Any]]:
    return [{**one.to_json(), "own": one.correction == own} for listed in outcomes.values() for one in listed]
