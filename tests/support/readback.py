"""Reads back received data: W&B's log, MLflow's client, TensorBoard's events, trackio's database."""

from __future__ import annotations

import json
import sqlite3
import struct
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mlflow.entities import Metric

_BLOCK = 32 * 1024
_FILE_HEADER = struct.Struct("<4sHB")
_CHUNK_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


@dataclass
class WandbRun:
    """Contents of one run in W&B's log file.

    Attributes:
        project: the project's name.
        history: rows in order; nested keys are joined by dots, a histogram has ``._type``, ``.values``, ``.bins``.
        config: by top-level key.
        summary: last values, keys as in ``history``.
        step_metrics: for each ``define_metric`` name or glob, its x-axis.
        kept: for each ``define_metric`` name or glob, which values the summary keeps of it, such as ``min``.
        exit_code: None while the run is not finished.
        alerts: title, text and level of each, in order.
    """

    project: str = ""
    history: list[dict[str, Any]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    step_metrics: dict[str, str] = field(default_factory=dict)
    kept: dict[str, set[str]] = field(default_factory=dict)
    exit_code: int | None = None
    alerts: list[tuple[str, str, str]] = field(default_factory=list)


def read_wandb(path: Path, *, finished: bool = True, timeout_s: float = 20.0) -> WandbRun:
    """Reads an offline run.

    Args:
        path: a ``.wandb`` file, or a folder with exactly one somewhere in it.
        finished: wait for the exit record, which W&B writes some time after ``finish()`` returns.
        timeout_s: how long to wait.

    Raises:
        TimeoutError: if the exit record does not come.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        files = [path] if path.is_file() else sorted(path.rglob("run-*.wandb"))
        run = _wandb_run(files[0]) if len(files) == 1 else WandbRun()
        if run.exit_code is not None or (not finished and run.history):
            return run
        if time.monotonic() > deadline:
            msg = f"no finished run in {path} after {timeout_s} s; found {files} with {len(run.history)} rows"
            raise TimeoutError(msg)
        time.sleep(0.05)


def _wandb_run(path: Path) -> WandbRun:
    from wandb.proto.wandb_internal_pb2 import Record

    run = WandbRun()
    for payload in _log_payloads(path.read_bytes()):
        record = Record.FromString(payload)
        match record.WhichOneof("record_type"):
            case "run":
                run.project = record.run.project
                run.config |= _items(record.run.config.update)
            case "config":
                run.config |= _items(record.config.update)
            case "history":
                run.history.append(_items(record.history.item))
            case "summary":
                run.summary |= _items(record.summary.update)
            case "metric":
                name = record.metric.name or record.metric.glob_name
                run.step_metrics[name] = record.metric.step_metric
                run.kept[name] = {kind.name for kind, _ in record.metric.summary.ListFields()}
            case "alert":
                run.alerts.append((record.alert.title, record.alert.text, record.alert.level))
            case "exit":
                run.exit_code = record.exit.exit_code
    return run


def _log_payloads(data: bytes) -> Iterator[bytes]:
    """Payloads of a LevelDB log behind W&B's own file header; a torn tail ends it."""
    if len(data) < _FILE_HEADER.size:
        return
    mark, magic, _ = _FILE_HEADER.unpack_from(data)
    if (mark, magic) != (b":W&B", 0xBEE1):
        msg = f"not a W&B log: it begins with {data[:7]!r}"
        raise ValueError(msg)
    position, parts = _FILE_HEADER.size, bytearray()
    while position + _CHUNK_HEADER.size <= len(data):
        room = _BLOCK - position % _BLOCK
        if room < _CHUNK_HEADER.size:
            position += room
            continue
        _, length, kind = _CHUNK_HEADER.unpack_from(data, position)
        start = position + _CHUNK_HEADER.size
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or start + length > len(data):
            return
        if kind in (_FULL, _FIRST):
            parts.clear()
        parts += data[start : start + length]
        position = start + length
        if kind in (_FULL, _LAST):
            yield bytes(parts)


def _items(items: Iterable[Any]) -> dict[str, Any]:
    return {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


@dataclass
class MlflowRun:
    """Contents of one run in MLflow.

    Attributes:
        metrics: the whole history by key.
        params: by key.
        tags: by key.
        artifacts: paths of all files.
        status: such as ``"FINISHED"``.
    """

    metrics: dict[str, list[Metric]]
    params: dict[str, str]
    tags: dict[str, str]
    artifacts: list[str]
    status: str


def read_mlflow(uri: str, run_id: str) -> MlflowRun:
    """Reads a run through a client of its own."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    run = client.get_run(run_id)
    return MlflowRun(
        metrics={key: list(client.get_metric_history(run_id, key)) for key in run.data.metrics},
        params=dict(run.data.params),
        tags=dict(run.data.tags),
        artifacts=sorted(_artifact_paths(client, run_id, None)),
        status=run.info.status,
    )


def read_mlflow_artifact(uri: str, run_id: str, path: str) -> bytes:
    """Content of one artifact."""
    from mlflow import MlflowClient

    with tempfile.TemporaryDirectory() as folder:
        return Path(MlflowClient(uri).download_artifacts(run_id, path, folder)).read_bytes()


def _artifact_paths(client: Any, run_id: str, folder: str | None) -> Iterator[str]:
    for entry in client.list_artifacts(run_id, folder):
        if entry.is_dir:
            yield from _artifact_paths(client, run_id, entry.path)
        else:
            yield entry.path


@dataclass
class TensorBoardRun:
    """Contents of the event files of one folder.

    Attributes:
        scalars: ``(step, value)`` by tag.
        histograms: ``(step, buckets)`` by tag; buckets are ``(left, right, count)`` as the page draws them.
        texts: by tag, the newest.
    """

    scalars: dict[str, list[tuple[int, float]]]
    histograms: dict[str, list[tuple[int, list[tuple[float, float, float]]]]]
    texts: dict[str, str]


def read_tensorboard(folder: Path) -> TensorBoardRun:
    """Reads all event files of one folder, migrated as TensorBoard itself does before it shows them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0, "histograms": 0})
    accumulator.Reload()
    run = TensorBoardRun({}, {}, {})
    for tag in accumulator.Tags()["scalars"]:
        run.scalars[tag] = [(event.step, event.value) for event in accumulator.Scalars(tag)]
    for tag in accumulator.Tags()["histograms"]:
        run.histograms[tag] = [(event.step, _buckets(event.histogram_value)) for event in accumulator.Histograms(tag)]
    for tag in accumulator.Tags()["tensors"]:
        run.texts[tag] = make_ndarray(accumulator.Tensors(tag)[-1].tensor_proto).item().decode()
    return run


def read_trackio_alerts(folder: Path, project: str = "ratioscope") -> list[tuple[str, str, str, int]]:
    """Title, text, level and step of each alert of a project, the oldest first."""
    connection = sqlite3.connect(f"file:{folder / project}.db?mode=ro", uri=True)
    try:
        return connection.execute("SELECT title, text, level, step FROM alerts ORDER BY id").fetchall()
    finally:
        connection.close()


def _buckets(value: Any) -> list[tuple[float, float, float]]:
    """Buckets by TensorBoard's rule: the first begins at ``min`` and the last ends at ``max``."""
    inner = list(value.bucket_limit)[:-1]
    return list(zip([value.min, *inner], [*inner, value.max], value.bucket, strict=True))


@dataclass
class TrackioRun:
    """Contents of one run in trackio's database.

    Attributes:
        name: the run's name.
        rows: what was logged, in order of arrival, with the row's ``step``.
        config: what stands beside the run.
    """

    name: str
    rows: list[dict[str, Any]]
    config: dict[str, Any]


def read_trackio(folder: Path, project: str = "ratioscope") -> dict[str, TrackioRun]:
    """Every run of a project by its id, the oldest first.

    Args:
        folder: ``TRACKIO_DIR``.
        project: the project's name.
    """
    runs: dict[str, TrackioRun] = {}
    connection = sqlite3.connect(f"file:{folder / project}.db?mode=ro", uri=True)
    try:
        for run_id, name, step, body in connection.execute(
            "SELECT run_id, run_name, step, metrics FROM metrics ORDER BY id"
        ):
            run = runs.setdefault(run_id, TrackioRun(name, [], {}))
            run.rows.append({**json.loads(body), "step": step})
        for run_id, body in connection.execute("SELECT run_id, config FROM configs"):
            runs[run_id].config = json.loads(body)
    finally:
        connection.close()
    return runs
