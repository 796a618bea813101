"""What an MLflow run shows of its histograms: pictures over the steps, tables, and the report."""

from __future__ import annotations

import json
import logging
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratioscope.runs.worst import COLUMNS, table_rows
from ratioscope_integrations.trackers.mlflow.stored import HISTOGRAMS_ARTIFACT, Memory, drawn, drawn_bins, table_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mlflow import MlflowClient

    from ratioscope.runs.timeline import Timeline
    from ratioscope.trackers.base import Row
    from ratioscope_integrations.pictures.scales import Bounds

REPORT_ARTIFACT = "ratioscope_report.html"
"""At the root, for only files there are shown side by side where runs are compared."""

COMMON_PICTURE = "ratioscope_{level}_log_ratio.png"
"""At the root for the same reason."""

TABLE_ARTIFACT = "ratioscope/log_ratio_by_step.json"

WORST_ARTIFACT = "ratioscope/worst_tokens.json"

_TABLES_TAG = "mlflow.loggedArtifacts"
_CELLS = "table_images/ratioscope"

_logger = logging.getLogger("ratioscope")


def stored_memory(client: MlflowClient, run_id: str) -> Memory:
    """What an earlier process left in this run, so that the pictures of a resumed training show all of it."""
    text = stored_text(client, run_id, HISTOGRAMS_ARTIFACT)
    if text is None:
        return Memory()
    try:
        return Memory.from_json(json.loads(text))
    except (AttributeError, KeyError, TypeError, ValueError):
        _logger.warning("MLflow: %s of run %s cannot be read; pictures start anew", HISTOGRAMS_ARTIFACT, run_id)
        return Memory()


def stored_text(client: MlflowClient, run_id: str, path: str) -> str | None:
    """An artifact as text; None if the run has none of this path."""
    if path not in {entry.path for entry in client.list_artifacts(run_id, path.rpartition("/")[0] or None)}:
        return None
    with tempfile.TemporaryDirectory() as folder:
        return Path(client.download_artifacts(run_id, path, folder)).read_text(encoding="utf-8")


def log_memory(client: MlflowClient, run_id: str, memory: Memory) -> None:
    """Leaves the counts behind the pictures, from which the run can be rebuilt."""
    client.log_text(run_id, json.dumps(memory.to_json(), separators=(",", ":")), HISTOGRAMS_ARTIFACT)


def pictures(
    client: MlflowClient, run_id: str, memory: Memory, row: Row, *, steps: Sequence[int], over_training: bool = True
) -> Iterator[None]:
    """Logs the pictures of a split up to this row, one with each step of the iterator.

    MLflow's image chart opens at step 0 and is blank without a picture there, so the heat map of the whole training
    always goes there.

    Args:
        client: of the run's server.
        run_id: the run.
        memory: what is known of the run.
        row: a window of the split; its newest, if the heat map is logged.
        steps: where the window's histogram goes.
        over_training: whether the heat map is logged, too.
    """
    from ratioscope_integrations.pictures.pictures import heatmap_picture, histogram_picture

    for key, level, bounds in _pictured(row):
        name = key.replace("pictures/token_", "ratioscope/").replace("pictures/", "ratioscope/")
        label = f"{level.capitalize()} log-ratio, {row.split}"
        series = memory.pictures.latest(key)
        if not series.windows:  # of an evaluation that a restart has superseded
            continue
        if over_training:
            title = f"{label}, to step {series.steps()[-1]}"
            heat = heatmap_picture(series.bins(), series.steps(), title=title, bounds=bounds)
            client.log_image(run_id, heat, key=f"{name}_over_training", step=0, synchronous=True)
            yield
        bins = drawn_bins(memory, row, key)
        bars = histogram_picture(bins, title=f"{label}, step {row.step}", bounds=bounds)
        for step in sorted(set(steps)):
            client.log_image(run_id, bars, key=name, step=step, synchronous=True)
            yield


def _pictured(row: Row) -> list[tuple[str, str, Bounds]]:
    """Key, level and bounds of the histograms to draw: tokens always, sequences where the rule acts on them."""
    rule = row.record.correction
    level = "token" if rule is None else rule.level
    own = None if rule is None else rule.bounds
    bounds: dict[str, Bounds] = {level: (None, None) if own is None else (own.lower, own.upper)}
    wanted = {f"{name}_log_ratio": name for name in dict.fromkeys(["token", level])}
    return [
        (key, wanted[name], bounds.get(wanted[name], (None, None)))
        for key, name in drawn(row).items()
        if name in wanted
    ]


def log_common_pictures(client: MlflowClient, run_id: str, memory: Memory, row: Row) -> None:
    """Logs the heat maps at the root, where the page that compares runs shows them side by side."""
    from ratioscope_integrations.pictures.pictures import heatmap_picture

    for key, level, bounds in _pictured(row):
        series = memory.pictures.latest(key)
        title = f"{level.capitalize()} log-ratio, to step {row.step}"
        picture = heatmap_picture(series.bins(), series.steps(), title=title, bounds=bounds)
        client.log_image(run_id, picture, artifact_file=COMMON_PICTURE.format(level=level))


def log_table(client: MlflowClient, run_id: str, memory: Memory, row: Row) -> None:
    """Logs a table of histograms, whose rows are steps that other runs have, too.

    MLflow's own ``log_table`` appends to the table of an earlier process, and shows its pictures shrunk.

    Args:
        client: of the run's server.
        run_id: the run.
        memory: what is known of the run.
        row: a window of the training, whose rule gives the columns.
    """
    from ratioscope_integrations.pictures.cells import cell_picture

    columns: dict[str, dict[int, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for key, level, bounds in _pictured(row):
            series = memory.pictures.latest(key)
            cells = columns[f"{level}_log_ratio"] = {}
            for step, position in table_steps(series.steps()).items():
                window = series.windows[position]
                cells[step] = f"{_CELLS}/{level}_{step}.png"
                first = series.windows[position - 1].last_step + 1 if position else window.first_step
                title = f"step {step}" if first >= window.last_step else f"steps {first} to {window.last_step}"
                picture = cell_picture(series.bins()[position], title=title, bounds=bounds)
                place = Path(folder, cells[step])
                place.parent.mkdir(parents=True, exist_ok=True)
                picture.save(place)
        steps = sorted({step for cells in columns.values() for step in cells})
        rows = [[step, *(_cell(cells.get(step)) for cells in columns.values())] for step in steps]
        table = Path(folder, TABLE_ARTIFACT)
        table.parent.mkdir(parents=True, exist_ok=True)
        table.write_text(json.dumps({"columns": ["step", *columns], "data": rows}))
        client.log_artifacts(run_id, folder)
    _mark_as_table(client, run_id, TABLE_ARTIFACT)


def log_worst_tokens(client: MlflowClient, run_id: str, memory: Memory) -> None:
    """Logs the worst tokens as a table, in place of the one before; no more than one a run, of at most 64 rows."""
    rows = table_rows(memory.worst)
    if rows:
        client.log_text(run_id, json.dumps({"columns": list(COLUMNS), "data": rows}), WORST_ARTIFACT)
        _mark_as_table(client, run_id, WORST_ARTIFACT)


def _mark_as_table(client: MlflowClient, run_id: str, path: str) -> None:
    """Has MLflow show an artifact among a run's tables; the first is the one that its table view opens with."""
    tables: list[Any] = json.loads(client.get_run(run_id).data.tags.get(_TABLES_TAG, "[]"))
    entry = {"path": path, "type": "table"}
    if entry not in tables:
        tables = sorted([*tables, entry], key=lambda table: str(table["path"]) == WORST_ARTIFACT)
        client.set_tag(run_id, _TABLES_TAG, json.dumps(tables), synchronous=True)


def _cell(path: str | None) -> dict[str, str] | None:
    return None if path is None else {"type": "image", "filepath": path, "compressed_filepath": path}


def log_report(client: MlflowClient, run_id: str, timeline: Callable[[], Timeline]) -> None:
    """Logs the report, where what it is drawn with is installed."""
    if find_spec("plotly") is None:
        _logger.info('MLflow: no %s was made; it needs pip install "ratioscope[report]"', REPORT_ARTIFACT)
        return
    from ratioscope.report.page.page import report_html

    client.log_text(run_id, report_html(timeline()), REPORT_ARTIFACT)
