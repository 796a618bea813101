"""The shared chart view of an MLflow experiment: quantile fan, modified fractions, ESS, KL and pictures of all runs.

A shared view is a tag of the experiment. MLflow has no interface for writing one and does not document its content,
so the command is opt-in, and its errors say why a view cannot be written.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from typing import TYPE_CHECKING, Any

from ratioscope.metrics.metric import PREFIX
from ratioscope_integrations.trackers.mlflow.server import public_uri, server_version

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from mlflow import MlflowClient

HELP = "write a shared chart view into an MLflow experiment, and print its address"

VIEW = "ratioscope"
"""Id of the view: one for each experiment; the next call replaces it."""
TAG = f"mlflow.sharedViewState.{VIEW}"

OLDEST = (3, 15)
"""First version of MLflow with named shared views."""

QUANTILES = ("p01", "p05", "p50", "p95", "p99")
RUNS_DISPLAYED = 10
_MAX_RUNS = 50
"""Number of newest runs whose metrics decide which charts a view has."""
_SECTION = {"display": True, "isReordered": False, "deleted": False, "isGenerated": False}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("--experiment", required=True, metavar="NAME", help="the experiment's name")
    text = "where MLflow is (default: MLFLOW_TRACKING_URI, else MLflow's own default)"
    parser.add_argument("--tracking-uri", metavar="URI", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Writes the view and prints its address. Errors carry a text for the command line to print."""
    print(write_view(arguments.experiment, arguments.tracking_uri))
    return 0


def write_view(experiment: str, tracking_uri: str | None = None) -> str:
    """Writes the view.

    Args:
        experiment: the experiment's name.
        tracking_uri: address of the server or store; None for that of the environment.

    Returns:
        The view's address, preceded by the command that starts a server if there is none.

    Raises:
        ImportError: if mlflow is missing.
        LookupError: if there is no such experiment.
        ConnectionError: if the server cannot be reached.
        RuntimeError: if the MLflow is too old.
    """
    try:
        import mlflow
        from mlflow import MlflowClient
    except ImportError as error:
        msg = 'views of MLflow need mlflow; install it with: pip install "ratioscope[mlflow]"'
        raise ImportError(msg) from error
    uri: str = tracking_uri or mlflow.get_tracking_uri()
    check_version(server_version(uri) or mlflow.__version__, public_uri(uri))
    client = MlflowClient(uri)
    entry = client.get_experiment_by_name(experiment)
    if entry is None:
        known = ", ".join(repr(other.name) for other in client.search_experiments(max_results=10))
        msg = f"got --experiment {experiment!r}; {public_uri(uri)} has no experiment of that name, but {known}"
        raise LookupError(msg)
    client.set_experiment_tag(entry.experiment_id, TAG, view(_present(client, entry.experiment_id)))
    path = f"/#/experiments/{entry.experiment_id}/runs?compareRunsMode=CHART&viewStateShareKey={VIEW}"
    if uri.startswith(("http://", "https://")):
        return public_uri(uri) + path
    return f"mlflow ui --backend-store-uri {shlex.quote(public_uri(uri))}\nThen open http://127.0.0.1:5000{path}"


def check_version(version: str, where: str) -> None:
    """Checks that a version of MLflow has shared views.

    Args:
        version: the server's version, such as ``"3.15.0"``.
        where: the server's address, for the message.

    Raises:
        RuntimeError: if it has none.
    """
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        msg = f"got MLflow {version} at {where}; shared views need {oldest} or newer. Everything else that "
        msg += "ratioscope logs is there without one: charts of each metric, images, and the table"
        raise RuntimeError(msg)


def view(present: frozenset[str], *, now: int | None = None) -> str:
    """Returns the tag's content.

    Args:
        present: keys of the metrics that the experiment's runs have; charts without any are left out. Empty for all.
        now: milliseconds since the epoch; None for the current time.
    """
    charts: list[dict[str, Any]] = []
    sections: list[dict[str, Any]] = []
    for name, candidates in _sections(present):
        parts = [chart for chart in candidates if chart is not None]
        if parts:
            identifier = f"{VIEW}-{len(sections)}"
            sections.append({"uuid": identifier, "name": name, **_SECTION})
            charts.extend(
                {"uuid": f"{identifier}-{index}", "metricSectionId": identifier, **part}
                for index, part in enumerate(parts)
            )
    state = {
        "compareRunCharts": charts,
        "compareRunSections": sections,
        "isAccordionReordered": True,
        "viewMaximized": False,
        "runListHidden": False,
        "hideEmptyCharts": True,
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
    }
    time_ms = int(1000 * time.time()) if now is None else now
    return json.dumps({"name": VIEW, "createdAt": time_ms, "updatedAt": time_ms, "state": json.dumps(state)})


def _sections(present: frozenset[str]) -> list[tuple[str, list[dict[str, Any] | None]]]:
    """Returns titles and charts; None in place of a chart without any metric."""

    def lines(*keys: str, log: bool = False) -> dict[str, Any] | None:
        known = [key for key in keys if key in present or not present]
        return _lines(known, log=log) if known else None

    def fan(level: str) -> dict[str, Any] | None:
        return lines(*(f"{PREFIX}{level}/raw/{name}" for name in QUANTILES), log=True)

    return [
        ("Raw ratio: quantiles (log scale)", [fan("token"), fan("sequence")]),
        (
            "What the rule changes",
            [
                lines(f"{PREFIX}modified/low", f"{PREFIX}modified/high"),
                lines(f"{PREFIX}ess/raw", f"{PREFIX}ess/corrected"),
            ],
        ),
        ("Engines' mismatch", [lines(f"{PREFIX}kl/k1", f"{PREFIX}kl/k3"), lines(f"{PREFIX}log_ratio/abs_mean")]),
        (
            "Log-ratio: over training, and by step",
            [_images(f"{PREFIX}log_ratio_over_training"), _images(f"{PREFIX}log_ratio")],
        ),
    ]


def _present(client: MlflowClient, experiment_id: str) -> frozenset[str]:
    """Returns the keys of all metrics that the experiment's newest runs have."""
    runs = client.search_runs([experiment_id], max_results=_MAX_RUNS)
    return frozenset(key for run in runs for key in run.data.metrics)


def _chart(kind: str) -> dict[str, Any]:
    return {"type": kind, "runsCountToCompare": RUNS_DISPLAYED, "deleted": False, "isGenerated": False}


def _lines(keys: Sequence[str], *, log: bool) -> dict[str, Any]:
    return {
        **_chart("LINE"),
        "displayName": keys[0],
        "metricKey": keys[0],
        "selectedMetricKeys": list(keys),
        "lineSmoothness": 0,
        "xAxisScaleType": "linear",
        "scaleType": "log" if log else "linear",
        "range": {},
        "xAxisKey": "step",
        "selectedXAxisMetricKey": "",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "ignoreOutliers": False,
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }


def _images(key: str) -> dict[str, Any]:
    return {**_chart("IMAGE"), "displayName": key, "imageKeys": [key], "step": 0, "showRunParams": False}
