"""Workspace view of a W&B project: shows a run's correction at a glance and compares runs.

Requires ``wandb-workspaces``. In W&B, a key that the trainer reports has the prefix ``train/``; in a run that the
tracker opened it has none. A chart asks for both keys, and W&B plots the one that exists.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratioscope.metrics import catalogue
from ratioscope.metrics.metric import FRACTION, PREFIX, RAW
from ratioscope.trackers.registry import names
from ratioscope.trackers.rows import SHOWN
from ratioscope_integrations.trackers.wandb.runs import STEP_KEY
from ratioscope_integrations.trackers.wandb.summaries import TRAIN

if TYPE_CHECKING:
    import argparse

HELP = "save a workspace view of ratios, histograms and modified fractions in a W&B project"
NAME = "ratioscope"
QUANTILES = ("p01", "p05", "p50", "p95", "p99")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("--project", required=True, metavar="ENTITY/PROJECT", help="the project to save the view in")
    parser.add_argument("--name", default=NAME, help=f"the view's name (default: {NAME})")
    parser.add_argument("--dry-run", metavar="FILE", help="write the view's specification there, and ask no server")


def run(arguments: argparse.Namespace) -> int:
    """Saves the view and prints its address; each call makes a new view.

    Raises:
        ValueError: if the project is not ``ENTITY/PROJECT``.
        ImportError: if ``wandb-workspaces`` is missing.
        RuntimeError: if W&B refuses the view or cannot be reached.
    """
    entity, _, project = arguments.project.partition("/")
    if not entity.strip() or not project.strip() or "/" in project:
        msg = f"got --project {arguments.project}; expected ENTITY/PROJECT, as in the address of the project's page"
        raise ValueError(msg)
    view = workspace(entity, project, name=arguments.name)
    if arguments.dry_run:
        Path(arguments.dry_run).write_text(json.dumps(specification(view), indent=1) + "\n", encoding="utf-8")
        print(f"{arguments.dry_run}: the view is valid; nothing was sent")
        return 0
    print(_save(view, arguments.project))
    return 0


def workspace(entity: str, project: str, *, name: str = NAME) -> Any:
    """Makes the view as a ``wandb_workspaces.workspaces.Workspace``, validated but not saved.

    Raises:
        ImportError: if ``wandb-workspaces`` is missing.
    """
    try:
        from wandb_workspaces import workspaces
    except ImportError as error:
        msg = 'a W&B workspace needs the package wandb-workspaces: pip install "ratioscope[panels]"'
        raise ImportError(msg) from error
    sections = [
        workspaces.Section(
            name=title,
            panels=panels,
            is_open=True,
            layout_settings=workspaces.SectionLayoutSettings(columns=3, rows=2),
        )
        for title, panels in _sections()
    ]
    settings = workspaces.WorkspaceSettings(x_axis=STEP_KEY)
    return workspaces.Workspace(
        entity=entity, project=project, name=name, sections=sections, settings=settings, auto_generate_panels=False
    )


def specification(view: Any) -> dict[str, Any]:
    """Returns the JSON that W&B receives, made without a network.

    Raises:
        RuntimeError: if this version of ``wandb-workspaces`` does not expose it.
    """
    to_model = getattr(view, "_to_model", None)
    if to_model is None:
        msg = (
            "this version of wandb-workspaces cannot write a view to a file; call without --dry-run, or install 0.4.13"
        )
        raise RuntimeError(msg)
    model: dict[str, Any] = to_model().model_dump(mode="json", by_alias=True, exclude_none=True)
    return model


def _sections() -> list[tuple[str, list[Any]]]:
    return [
        ("Correction at a glance", _correction()),
        ("Raw ratio fan", _raw_ratio()),
        ("Histograms over training", _histograms()),
        ("Engines' mismatch", _mismatch()),
        ("Health", _health()),
    ]


def _correction() -> list[Any]:
    return [
        _lines("Modified fraction", FRACTION, "modified/low", "modified/high"),
        _lines("Modified fraction by sign of the advantage", *_by_sign()),
        _lines("Effective sample size", "ess/raw", "ess/corrected"),
        _lines("Mean ratio, raw and corrected", f"{RAW}/mean", "corrected/mean"),
    ]


def _raw_ratio() -> list[Any]:
    fans = [
        _lines(f"{level.capitalize()} ratio, quantiles", *(f"{level}/raw/{name}" for name in QUANTILES), log=True)
        for level in ("token", "sequence")
    ]
    return [
        _lines("Ratio at the rule's level, quantiles", "raw/p01", "raw/p50", "raw/p99", log=True),
        *fans,
        _lines("Smallest, mean and largest ratio", *(f"{RAW}/{name}" for name in ("min", "mean", "max")), log=True),
    ]


def _histograms() -> list[Any]:
    from wandb_workspaces.reports.v2.interface import MediaBrowser

    return [
        MediaBrowser(title=name.replace("_", " "), media_keys=[f"{PREFIX}hist/{name}", f"eval/{PREFIX}hist/{name}"])
        for name in SHOWN
    ]


def _mismatch() -> list[Any]:
    return [
        _lines("Mean absolute log-ratio", "log_ratio/abs_mean", "token/log_ratio/abs_mean", "row/abs_mean_max"),
        _lines("KL between the engines", "kl/k1", "kl/k3"),
        _lines("Spread of the log-ratio", "token/log_ratio/std", "sequence/log_ratio/std"),
        _lines("Tokens with a ratio outside [0.9, 1.1]", "outside/0.9_1.1"),
        _lines("Slope of trainer over rollout log-probability", "calibration/slope"),
        _lines("Geometric mean ratio of a row", "sequence/geometric/mean"),
    ]


def _health() -> list[Any]:
    delivery = {
        count: [f"delivery/{name}/{count}" for name in sorted(names())] for count in ("queued", "delivered", "failed")
    }
    return [
        _lines("Left out: tokens and rows", "tokens/invalid", "rows/empty"),
        _lines("Counts of what was left out", "counts/rows_empty", "counts/overflow", "counts/nan", "counts/inf"),
        _lines("Tokens and rows in a window", "counts/tokens", "counts/rows"),
        *(_lines(f"Rows {count}, by tracker", *keys) for count, keys in delivery.items()),
        _lines("Time of observing and of a flush, ms", "overhead/observe_ms", "overhead/flush_ms"),
    ]


def _by_sign() -> list[str]:
    return [f"modified/{sign}_advantage" for sign in ("positive", "negative")]


def _lines(title: str, *keys: str, log: bool = False) -> Any:
    """Makes a chart over the training step; keys omit ``ratioscope/``."""
    from wandb_workspaces.reports.v2.interface import LinePlot

    carried = catalogue.keys("headline")
    whole = [key if key.startswith(f"{RAW}/") or key == FRACTION else PREFIX + key for key in keys]
    y: list[Any] = [name for key in whole for name in ([TRAIN + key, key] if key in carried else [key])]
    return LinePlot(title=title, x=STEP_KEY, y=y, log_y=log or None)


def _save(view: Any, project: str) -> str:
    """Saves a view and returns its address."""
    try:
        view.save()
        return str(view.url)
    except Exception as error:
        if "api key" in str(error).lower():
            msg = "W&B has no login here; call `wandb login`, or set WANDB_API_KEY"
        else:
            reason = str(error).rstrip(".")
            msg = f"W&B did not take the view: {reason}. Check the login, and that you may write to {project}"
        raise RuntimeError(msg) from error
