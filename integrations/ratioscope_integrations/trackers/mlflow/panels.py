"""The shared chart view of an MLflow experiment: quantile fan, modified fractions, ESS, KL and pictures of all runs.

A shared view is a tag of the experiment. MLflow has no interface for writing one, and describes its content nowhere,
so the command is opt-in and says what it found where it cannot write.
"""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

from ratioscope_integrations.trackers.mlflow.place import public_uri, server_version

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from mlflow import MlflowClient

HELP = "write a shared chart view into an MLflow experiment, and print its address"

VIEW = "ratioscope"
"""Id of the view: one for each experiment, written over by the next call."""
TAG = f"mlflow.sharedViewState.{VIEW}"

OLDEST = (3, 15)
"""The first MLflow that has shared views under a name."""

MAX_TAG = 20_000
"""Characters that MLflow takes for a tag of an experiment."""

QUANTILES = ("p01", "p05", "p50", "p95", "p99")
RUNS_SHOWN = 10
_LOOKED_AT = 50
"""Newest runs that are asked what they have."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes what the command takes."""
    parser.add_argument("--experiment", required=True, metavar="NAME", help="the experiment's name")
    where = "where MLflow is (default: MLFLOW_TRACKING_URI, else MLflow's own default)"
    parser.add_argument("--tracking-uri", metavar="URI", help=where)


def run(arguments: argparse.Namespace) -> int:
    """Does it; whatever goes wrong is an error with a text, for the command line to print."""
    print(write_view(arguments.experiment, arguments.tracking_uri))
    return 0


def write_view(experiment: str, tracking_uri: str | None = None) -> str:
    """Writes the view.

    Args:
        experiment: its name.
        tracking_uri: where MLflow is; None for what the environment says.

    Returns:
        The view's address, or the command that starts a server and the address under it.

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
    found = client.get_experiment_by_name(experiment)
    if found is None:
        known = ", ".join(repr(each.name) for each in client.search_experiments(max_results=10))
        msg = f"got --experiment {experiment!r}; {public_uri(uri)} has no experiment of that name, but {known}"
        raise LookupError(msg)
    client.set_experiment_tag(found.experiment_id, TAG, view(_present(client, found.experiment_id)))
    path = f"/#/experiments/{found.experiment_id}/runs?compareRunsMode=CHART&viewStateShareKey={VIEW}"
    if uri.startswith(("http://", "https://")):
        return public_uri(uri) + path
    return f"mlflow ui --backend-store-uri {public_uri(uri)}\nThen open http://127.0.0.1:5000{path}"


def check_version(version: str, where: str) -> None:
    """Passes if this version of MLflow has shared views.

    Raises:
        RuntimeError: if not.
    """
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        msg = f"got MLflow {version} at {where}; shared views need {oldest} or newer. Everything else that ratioscope "
        msg += "logs is there without one: charts of each metric, images, and the table"
        raise RuntimeError(msg)


def view(present: frozenset[str], *, now: int | None = None) -> str:
    """The tag's content.

    Args:
        present: keys of the metrics that the experiment's runs have; a chart of others is left out. Empty for all.
        now: milliseconds since the epoch.
    """
    charts: list[dict[str, Any]] = []
    sections: list[dict[str, Any]] = []

    def section(name: str, *parts: dict[str, Any] | None) -> None:
        shown = [part for part in parts if part is not None]
        if shown:
            at = f"{VIEW}-{len(sections)}"
            sections.append(
                {
                    "uuid": at,
                    "name": name,
                    "display": True,
                    "isReordered": False,
                    "deleted": False,
                    "isGenerated": False,
                }
            )
            charts.extend({"uuid": f"{at}-{place}", "metricSectionId": at, **p} for place, p in enumerate(shown))

    def lines(*keys: str, log: bool = False) -> dict[str, Any] | None:
        known = [key for key in keys if key in present or not present]
        return _lines(known, log=log) if known else None

    def fan(level: str) -> dict[str, Any] | None:
        return lines(*(f"ratioscope/{level}/raw/{name}" for name in QUANTILES), log=True)

    section("Raw ratio: quantiles (log scale)", fan("token"), fan("sequence"))
    section(
        "What the rule changes",
        lines("ratioscope/modified/low", "ratioscope/modified/high"),
        lines("ratioscope/ess/raw", "ratioscope/ess/corrected"),
    )
    section("Engines' mismatch", lines("ratioscope/kl/k1", "ratioscope/kl/k3"), lines("ratioscope/log_ratio/abs_mean"))
    section(
        "Log-ratio: over training, and by step",
        _images("ratioscope/log_ratio_over_training"),
        _images("ratioscope/log_ratio"),
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
    at = int(1000 * time.time()) if now is None else now
    return json.dumps({"name": VIEW, "createdAt": at, "updatedAt": at, "state": json.dumps(state)})


def _present(client: MlflowClient, experiment_id: str) -> frozenset[str]:
    runs = client.search_runs([experiment_id], max_results=_LOOKED_AT)
    return frozenset(key for found in runs for key in found.data.metrics)


def _chart(kind: str) -> dict[str, Any]:
    return {"type": kind, "runsCountToCompare": RUNS_SHOWN, "deleted": False, "isGenerated": False}


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
