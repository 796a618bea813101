"""What the backends of the built-in trackers have of a run, for the checks of `ratioscope.testing`.

    python tests/support/conformance_readers.py TRACKER FOLDER

makes all checks of one tracker, in a process of its own because backends keep state in theirs.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratioscope.testing import Received, check_tracker
from tests.support.readback import read_mlflow, read_mlflow_artifact, read_tensorboard, read_trackio, read_wandb

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def rows_received(
    rows: Iterable[Mapping[str, Any]], *, step: str, values: str, config: Mapping[str, Any] | None
) -> Received:
    """From rows of mixed values, a histogram's counts under ``values`` of a dict."""
    scalars, histograms = defaultdict(list), defaultdict(list)
    for row in rows:
        for key, value in row.items():
            if isinstance(value, dict) and values in value:
                histograms[key].append((int(row[step]), value[values]))
            elif isinstance(value, int | float):
                scalars[key].append((int(row[step]), value))
    return Received(scalars, histograms, config)


def wandb(folder: Path) -> Received:
    """Every file of the run that W&B wrote offline, one for each process."""
    runs = [read_wandb(file) for file in sorted(folder.rglob("run-*.wandb"))]
    rows: list[dict[str, Any]] = []
    for row in (row for run in runs for row in run.history):
        for key in [key.removesuffix("._type") for key in row if key.endswith("._type")]:
            row[key] = {"values": row[f"{key}.values"]}
        rows.append(row)
    return rows_received(rows, step="train/global_step", values="values", config=runs[-1].config["ratioscope"])


def mlflow(folder: Path) -> Received:
    """The only run of the folder's database, through MLflow's client."""
    from mlflow import MlflowClient

    from ratioscope_integrations.trackers.mlflow.stored import StoredWindows

    uri = f"sqlite:///{folder / 'mlflow.db'}"
    client = MlflowClient(uri)
    (entry,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    run_id = entry.info.run_id
    run = read_mlflow(uri, run_id)
    scalars = {key: [(metric.step, metric.value) for metric in series] for key, series in run.metrics.items()}
    stored = StoredWindows.from_json(json.loads(read_mlflow_artifact(uri, run_id, "ratioscope/histograms.json")))
    histograms = {
        key: [(window.last_step, window.counts.tolist()) for window in stored.histograms.latest(key).windows]
        for key in list(stored.histograms.keys())
    }
    config = json.loads(read_mlflow_artifact(uri, run_id, "ratioscope/config.json"))
    return Received(scalars, histograms, config)


def tensorboard(folder: Path) -> Received:
    """The folder's event files, as TensorBoard reads them."""
    run = read_tensorboard(folder / "ratioscope" / "conformance")
    histograms = {
        key: [(step, [count for *_, count in buckets]) for step, buckets in series]
        for key, series in run.histograms.items()
    }
    (text,) = (text for key, text in run.texts.items() if key.startswith("ratioscope/config"))
    return Received(run.scalars, histograms, json.loads(text.removeprefix("```json").removesuffix("```")))


def trackio(folder: Path) -> Received:
    """The newest run of trackio's database."""
    del folder
    run = list(read_trackio(Path(os.environ["TRACKIO_DIR"])).values())[-1]
    return rows_received(run.rows, step="step", values="values", config=run.config["ratioscope"])


READERS = {each.__name__: each for each in (wandb, mlflow, tensorboard, trackio)}


def main(name: str, folder: Path) -> None:
    """All checks of a tracker, made as ``report_to`` makes it."""
    from ratioscope.trackers.registry import resolve

    check_tracker(lambda: resolve(name)[0], READERS[name], folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
