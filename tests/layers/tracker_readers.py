"""Readers of runs that further clients stored on this machine, for the checks of `ratioscope.testing`.

    python tests/layers/tracker_readers.py TRACKER FOLDER

makes all checks of one tracker, in a process of its own because clients keep state in theirs; with a check's name after
the folder that one alone, in a ClearML task.
"""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from ratioscope.testing import CHECKS, Received, check_tracker


class Series:
    """Collects points as they are found."""

    def __init__(self) -> None:
        self.scalars: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self.histograms: dict[str, list[tuple[int, list[float]]]] = defaultdict(list)
        self.config: dict[str, Any] | None = None

    def received(self, **more: Any) -> Received:
        """Returns the contents as the checks take them."""
        return Received(self.scalars, self.histograms, self.config, **more)


def comet_ml(folder: Path) -> Received:
    """Every archive of the offline experiment, one for each process."""
    found = Series()
    for file in sorted(folder.rglob("*.zip")):
        archive = zipfile.ZipFile(file)
        messages = [json.loads(line) for line in archive.read("messages.json").splitlines()]
        for payload in (message["payload"] for message in messages):
            if "metric" in payload:
                metric = payload["metric"]
                found.scalars[metric["metricName"]].append((metric["step"], metric["metricValue"]))
            elif payload.get("upload_type") == "histogram3d":
                body = json.loads(archive.read(Path(payload["file_path"]).name))
                counts = [float(count) for _, count in body["index_values"]]
                step = payload["additional_params"]["step"]
                found.histograms[payload["additional_params"]["fileName"]].append((step, counts))
            elif payload.get("additional_params", {}).get("fileName") == "ratioscope/config.json":
                found.config = json.loads(archive.read(Path(payload["file_path"]).name))
    return found.received(regrouped=True)


def with_task(make: Any) -> Any:
    """A tracker in the process's only task, which is the user's."""
    from clearml import Task

    if Task.current_task() is None:
        quiet = {"auto_connect_frameworks": False, "auto_connect_streams": False, "auto_resource_monitoring": False}
        task = Task.init("ratioscope", "conformance", reuse_last_task_id=False, output_uri=False, **quiet)
        task.get_logger().set_flush_period(1.0)  # its end waits for the period
    return make()


def clearml(folder: Path) -> Received:
    """The newest offline session of ClearML's cache, after its end."""
    from clearml import Task

    del folder
    if (last := Task.current_task()) is not None:
        last.close()
    sessions = Path(os.environ["CLEARML_CACHE_DIR"]).rglob("offline-*/metrics.jsonl")
    session = max(sessions, key=lambda file: file.stat().st_mtime_ns)
    found = Series()
    for event in (event for line in session.read_text().splitlines() for event in json.loads(line)):
        key = f"{event['metric']}/{event['variant']}"
        if event["type"] == "plot":
            (bars,) = json.loads(event["plot_str"])["data"]
            found.histograms[key].append((event["iter"], bars["y"]))
        else:
            found.scalars[key].append((event["iter"], event["value"]))
    task = json.loads((session.parent / "task.json").read_text())
    found.config = json.loads(task["configuration"]["ratioscope"]["value"])
    return found.received()


def aim(folder: Path) -> Received:
    """The only run of the folder's repository; not read-only, since then Aim reads an index that its server makes."""
    import aim as client

    repository = client.Repo(str(folder))
    (name,) = repository.list_all_runs()
    run = client.Run(name, repo=repository, system_tracking_interval=None, capture_terminal_logs=False)
    found = Series()
    for metric in run.metrics():
        prefix = "eval/" if metric.context.to_dict()["subset"] == "eval" else ""
        steps, (values, *_) = metric.data.items_list()
        found.scalars[prefix + metric.name] += zip(steps, values, strict=True)
    for name, context, _ in run.iter_sequence_info_by_type("aim.distribution"):
        prefix = "eval/" if context.to_dict()["subset"] == "eval" else ""
        steps, values = run.get_distribution_sequence(name, context).values.sparse_list()
        found.histograms[prefix + name] += [
            (step, each.weights.tolist()) for step, each in zip(steps, values, strict=True)
        ]
    found.config = run["ratioscope"]
    run.close()
    return found.received()


def neptune_scale(folder: Path) -> Received:
    """Every store of operations of the run, one for each process."""
    from neptune_scale.sync.operations_repository import OperationsRepository

    found = Series()
    found.config = {}
    for file in sorted(folder.rglob("run_operations.sqlite3")):
        for operation in OperationsRepository(file).get_operations(up_to_bytes=1 << 30):
            update = operation.operation
            step = update.step.whole if hasattr(update, "step") else 0
            for key, value in getattr(update, "append", {}).items():
                if value.HasField("histogram"):
                    found.histograms[key].append((step, list(value.histogram.counts.values)))
                else:
                    found.scalars[key].append((step, value.float64))
            for key, value in getattr(update, "assign", {}).items():
                *parents, last = key.removeprefix("ratioscope/").split("/")
                place = found.config
                for parent in parents:
                    place = place.setdefault(parent, {})
                place[last] = getattr(value, value.WhichOneof("value"))
    return found.received()


def swanlab(folder: Path) -> Received:
    """Every record file of the run, one for each process."""
    import yaml
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    found = Series()
    for file in sorted(folder.rglob("run-*.swanlab")):
        reader = DataStoreReader()
        reader.open(file)
        for body in reader:
            record = Record.FromString(body)
            kind = record.WhichOneof("record_type")
            if kind == "scalar":
                found.scalars[record.scalar.key].append((record.scalar.step, record.scalar.value.number))
            elif kind == "media":
                for item in record.media.value.items:
                    chart = json.loads((file.parent / "media" / "echarts" / item.filename).read_text())
                    found.histograms[record.media.key].append((record.media.step, chart["series"][0]["data"]))
        found.config = yaml.safe_load((file.parent / "files" / "config.yaml").read_text())["ratioscope"]["value"]
    return found.received()


def dvclive(folder: Path) -> Received:
    """The folder's files."""
    import yaml

    found, place = Series(), folder / "dvclive"
    for file in (place / "plots" / "metrics").rglob("*.tsv"):
        key = file.relative_to(place / "plots" / "metrics").with_suffix("").as_posix()
        for line in file.read_text().splitlines()[1:]:
            step, value = line.split("\t")
            found.scalars[key].append((int(step), float(value)))
    found.config = yaml.safe_load((place / "params.yaml").read_text())["ratioscope"]
    return Received(found.scalars, None, found.config)


def tracker(name: str) -> Any:
    """Returns a tracker's class, with or without an entry point in the package's metadata."""
    from ratioscope_integrations.trackers import aim, clearml, comet, dvclive, neptune_scale, swanlab

    classes = (
        comet.CometTracker,
        clearml.ClearMLTracker,
        aim.AimTracker,
        neptune_scale.NeptuneScaleTracker,
        swanlab.SwanLabTracker,
        dvclive.DVCLiveTracker,
    )
    return {each.name: each for each in classes}[name]


READERS = {each.__name__: each for each in (comet_ml, clearml, aim, neptune_scale, swanlab, dvclive)}

if __name__ == "__main__":
    made = tracker(sys.argv[1])
    if len(sys.argv) == 3:
        check_tracker(made, READERS[sys.argv[1]], Path(sys.argv[2]))
    else:
        (check,) = (each for each in CHECKS if each.__name__ == sys.argv[3])
        check(lambda: with_task(made), READERS[sys.argv[1]], Path(sys.argv[2]))
