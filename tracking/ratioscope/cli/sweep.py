"""``ratioscope sweep``: computes the effect of other thresholds on a run, from its journal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ratioscope.cli.arguments import add_json, add_steps, sentence
from ratioscope.sweep.grid import CAPS, POINTS, geomspace, parse_bounds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from ratioscope.cli.sweep_table import Sweep
    from ratioscope.correction.bounds import Correction
    from ratioscope.correction.rule import Rule
    from ratioscope.record import Record
    from ratioscope.sweep.outcome import Outcome

SCHEMA = 1
"""Version of the JSON output."""
_FALLBACK = ("token_truncate", "sequence_mask")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describes the command."""
    text = "show what other thresholds would have done to a run"
    parser = commands.add_parser("sweep", help=text, description=sentence(text))
    parser.add_argument("path", help="a run's output directory, or its journal")
    modes = "token_truncate, token_mask, sequence_truncate, sequence_mask (default: the run's own)"
    parser.add_argument("--modes", metavar="MODE[,MODE]", help=modes)
    cap = "upper bounds: a range 1.1:5, one ratio, none, or several with commas (default: 1.1:5)"
    parser.add_argument("--clip-max", metavar="BOUNDS", help=cap)
    floor = "lower bounds, likewise; upper ones are then the run's own unless given (default: the run's own)"
    parser.add_argument("--clip-min", metavar="BOUNDS", help=floor)
    help_text = f"bounds in a range (default: {POINTS})"
    parser.add_argument("--points", type=int, default=POINTS, metavar="N", help=help_text)
    add_steps(parser)
    parser.add_argument("--per-step", action="store_true", help="each window by itself: median and worst")
    most = "largest fraction of ratios that the recommended rule may change (default: 0.01)"
    parser.add_argument("--max-modified", type=float, default=0.01, metavar="X", help=most)
    least = "smallest ESS that it may leave, as a fraction (default: 0.9)"
    parser.add_argument("--min-ess", type=float, default=0.9, metavar="X", help=least)
    add_json(parser)
    parser.set_defaults(run_command=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit code.

    Raises:
        FileNotFoundError: if there is no journal.
        LookupError: if it has no window of training in the range of steps.
        ImportError: if a table is requested and ``rich`` is missing.
    """
    _check(arguments)
    sweep = _sweep(arguments)
    if arguments.json:
        print(json.dumps(_as_json(arguments, sweep), allow_nan=False))
        return 0
    from ratioscope.cli.outputs import console
    from ratioscope.cli.sweep_table import render

    console().print(render(arguments.path, sweep))
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Checks and parses all options before the journal is read."""
    from ratioscope.correction.bounds import MODES

    error = arguments.parser.error
    if not 2 <= arguments.points <= 1000:
        error(f"--points: got {arguments.points}; expected 2 to 1000")
    for option, value in (("--max-modified", arguments.max_modified), ("--min-ess", arguments.min_ess)):
        if not 0.0 <= value <= 1.0:
            error(f"{option}: got {value:g}; expected a fraction from 0 to 1")
    arguments.modes = [mode.strip() for mode in arguments.modes.split(",")] if arguments.modes else []
    for mode in arguments.modes:
        if mode not in MODES:
            error(f"--modes: got {mode!r}; expected some of {', '.join(MODES)}, with commas")
    arguments.clip_max = _bounds(arguments, "--clip-max", arguments.clip_max)
    arguments.clip_min = _bounds(arguments, "--clip-min", arguments.clip_min)
    if not arguments.json:
        try:
            import rich  # noqa: F401
        except ImportError:
            msg = 'a table needs rich: pip install "ratioscope[report]", or ask for --json'
            raise ImportError(msg) from None


def _bounds(arguments: argparse.Namespace, option: str, text: str | None) -> list[float | None] | None:
    if text is None:
        return None
    try:
        return parse_bounds(text, arguments.points)
    except ValueError as wrong:
        return arguments.parser.error(f"{option}: {wrong}")  # type: ignore[no-any-return]  # exits


def _sweep(arguments: argparse.Namespace) -> Sweep:
    from ratioscope.cli.sweep_table import Sweep
    from ratioscope.runs.pooled import PooledRun
    from ratioscope.sweep.recommend import Advice, advise, pool_of

    pooled = pool_of(PooledRun.from_records(_records(arguments)))
    if pooled is None:
        msg = f"got {arguments.path}, {arguments.steps}; expected windows of training, and there is none"
        raise LookupError(msg)
    rules = _rules(arguments, pooled.mode_rule)
    outcomes = {mode: [pooled.outcome(rule) for rule in listed] for mode, listed in rules.items()}
    judged = _judged_mode(list(outcomes), pooled.mode_rule)
    advice = Advice(None, "")
    if judged:
        advice = advise(outcomes[judged], max_modified=arguments.max_modified, min_ess=arguments.min_ess)
    return Sweep(pooled, outcomes, list(_per_step(arguments, rules)) if arguments.per_step else None, advice)


def _records(arguments: argparse.Namespace) -> Iterator[Record]:
    """Yields the records in the range, one at a time."""
    from ratioscope.journal.reader import JournalReader
    from ratioscope.runs.read import tracker_of

    if tracker_of(arguments.path) is not None:
        arguments.parser.error(f"got {arguments.path}; a tracker has even bins only, expected a journal")
    with JournalReader(arguments.path) as journal:
        yield from journal.records(steps=arguments.steps)


def _rules(arguments: argparse.Namespace, own: Correction | None) -> dict[str, list[Correction]]:
    """Returns the rules to try, by mode."""
    from ratioscope.sweep.recommend import grid

    rules = {}
    for mode in dict.fromkeys(arguments.modes or ([own.mode] if own else _FALLBACK)):
        same_level = own if own is not None and own.level == mode.partition("_")[0] else None
        lowers, uppers = arguments.clip_min, arguments.clip_max
        if uppers is None and lowers is None:
            uppers = geomspace(*CAPS, arguments.points)
        if uppers is None:
            uppers = [same_level.upper if same_level else None]
        if lowers is None:
            lowers = [same_level.lower if same_level else None]
        rules[mode] = grid(mode, lowers=lowers, uppers=uppers, own=own)
    if not any(rules.values()):
        arguments.parser.error("no pair of these bounds is a rule; expected a lower bound below an upper one")
    return rules


def _judged_mode(modes: list[str], own: Correction | None) -> str | None:
    """Returns the mode to recommend a rule of: the run's own, or else the first of the same level; None if none is."""
    if own is None:
        return modes[0]
    same_level = [mode for mode in modes if mode.startswith(own.level)]
    return own.mode if own.mode in same_level else next(iter(same_level), None)


def _per_step(
    arguments: argparse.Namespace, rules: dict[str, list[Correction]]
) -> Iterator[tuple[int, dict[str, list[Outcome]]]]:
    """Yields step and outcomes of each window."""
    from ratioscope.runs.pooled import PooledRun
    from ratioscope.sweep.recommend import pool_of

    for record in _records(arguments):
        single = pool_of(PooledRun.from_records([record]))
        if single is not None:
            yield record.step, {mode: [single.outcome(rule) for rule in listed] for mode, listed in rules.items()}


def _as_json(arguments: argparse.Namespace, sweep: Sweep) -> dict[str, Any]:
    from ratioscope.metrics import formulas

    view, own, windows = sweep.pooled.view, sweep.pooled.own, sweep.windows
    raw = {
        level: {"n": view.counts[f"{level}/n"], "mean": view.ratio_mean(level), "ess": formulas.ess_raw(view, level)}
        for level in ("token", "sequence")
    }
    bounds = None if own is None else own.bounds
    return {
        "schema": SCHEMA,
        "path": str(arguments.path),
        "windows": sweep.pooled.windows,
        "steps": list(sweep.pooled.steps),
        "own": own and {"mode": own.mode, "lower": bounds and bounds.lower, "upper": bounds and bounds.upper},
        "own_rules": len(sweep.pooled.rules),
        "raw": raw,
        "outcomes": _outcomes_json(sweep.outcomes, own),
        "per_step": windows and [{"step": step, "outcomes": _outcomes_json(each, own)} for step, each in windows],
        "recommendation": {
            "max_modified": arguments.max_modified,
            "min_ess": arguments.min_ess,
            "outcome": sweep.advice.outcome and sweep.advice.outcome.to_json(),
            "text": sweep.advice.text or None,
        },
    }


def _outcomes_json(outcomes: dict[str, list[Outcome]], own: Rule | None) -> list[dict[str, Any]]:
    flat = [outcome for listed in outcomes.values() for outcome in listed]
    return [{**outcome.to_json(), "own": outcome.correction == own} for outcome in flat]
