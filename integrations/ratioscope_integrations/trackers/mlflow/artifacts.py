"""Artifacts of an MLflow run: pictures of its histograms, tables, the report, and the windows behind them."""

from __future__ import annotations

import json
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ratioscope.incidents import log
from ratioscope.metrics.terms import PREFIX
from ratioscope.report.page.page import report_html
from ratioscope.runs.worst import COLUMNS, table_rows
from ratioscope_integrations.pictures.cells import cell_picture
from ratioscope_integrations.pictures.pictures import heatmap_picture, histogram_picture
from ratioscope_integrations.trackers.mlflow.stored import (
    HISTOGRAMS_ARTIFACT,
    StoredWindows,
    plotted,
    plotted_bins,
    table_steps,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mlflow import MlflowClient

    from ratioscope.runs.timeline import Timeline
    from ratioscope.trackers.base import Row
    from ratioscope_integrations.pictures.scales import Bounds
    from ratioscope_integrations.trackers.mlflow.schedule import Pictures

REPORT_ARTIFACT = "ratioscope_report.html"
"""Stands at the root, because MLflow's page that compares runs shows only files there side by side."""

COMMON_PICTURE = "ratioscope_{level}_log_ratio.png"
"""Stands at the root for the same reason."""

TABLE_ARTIFACT = "ratioscope/log_ratio_by_step.json"

WORST_ARTIFACT = "ratioscope/worst_tokens.json"

_TABLES_TAG = "mlflow.loggedArtifacts"
_CELLS = "table_images/ratioscope"


class _Plot(NamedTuple):
    """One histogram to draw: key of its bins in ``StoredWindows.pictures``, level, and the rule's bounds there."""

    key: str
    level: str
    bounds: Bounds


def _plots(row: Row) -> list[_Plot]:
    """Returns the histograms to draw of a window: tokens always, sequences where the rule acts on them."""
    rule = row.record.correction
    level = "token" if rule is None else rule.level
    own = None if rule is None else rule.bounds
    bounds: Bounds = (None, None) if own is None else (own.lower, own.upper)
    levels = {f"{name}_log_ratio": name for name in dict.fromkeys(["token", level])}
    return [
        _Plot(key, levels[name], bounds if levels[name] == level else (None, None))
        for key, name in plotted(row).items()
        if name in levels
    ]


class RunArtifacts:
    """Reads and writes the artifacts of one run.

    Args:
        client: client of the run's server.
        run_id: the run.
    """

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self._client = client
        self._run_id = run_id

    def text(self, path: str) -> str | None:
        """Returns an artifact as text; None if the run has none of this path."""
        folder = path.rpartition("/")[0] or None
        if path not in {entry.path for entry in self._client.list_artifacts(self._run_id, folder)}:
            return None
        with tempfile.TemporaryDirectory() as copy:
            return Path(self._client.download_artifacts(self._run_id, path, copy)).read_text(encoding="utf-8")

    def stored_windows(self) -> StoredWindows:
        """Returns the windows that an earlier process stored, so that pictures of a resumed training show all of it."""
        text = self.text(HISTOGRAMS_ARTIFACT)
        if text is None:
            return StoredWindows()
        try:
            return StoredWindows.from_json(json.loads(text))
        except (AttributeError, KeyError, TypeError, ValueError):
            message = "MLflow: %s of run %s cannot be read; pictures begin with the next window"
            log.warning(message, HISTOGRAMS_ARTIFACT, self._run_id)
            return StoredWindows()

    def log_windows(self, stored: StoredWindows) -> None:
        """Stores the windows behind the pictures, from which the run can be read back."""
        text = json.dumps(stored.to_json(), separators=(",", ":"))
        self._client.log_text(self._run_id, text, HISTOGRAMS_ARTIFACT)

    def log_pictures(self, stored: StoredWindows, pictures: Pictures) -> Iterator[None]:
        """Logs the pictures of one window, one with each step of the iterator.

        MLflow's image chart opens at step 0 and is blank without a picture there, so the heat map of the whole
        training is always logged at step 0.
        """
        row = pictures.row
        for key, level, bounds in _plots(row):
            name = key.replace("pictures/token_", PREFIX).replace("pictures/", PREFIX)
            label = f"{level.capitalize()} log-ratio, {row.split}"
            series = stored.pictures.latest(key)
            if not series.windows:  # an evaluation that a restart has superseded
                continue
            if pictures.over_training:
                title = f"{label}, to step {series.steps()[-1]}"
                heat = heatmap_picture(series.bins(), series.steps(), title=title, bounds=bounds)
                self._client.log_image(self._run_id, heat, key=f"{name}_over_training", step=0, synchronous=True)
                yield
            bins = plotted_bins(stored, row, key)
            bars = histogram_picture(bins, title=f"{label}, step {row.step}", bounds=bounds)
            for step in sorted(set(pictures.steps)):
                self._client.log_image(self._run_id, bars, key=name, step=step, synchronous=True)
                yield

    def log_common_pictures(self, stored: StoredWindows, row: Row) -> None:
        """Logs the heat maps at the root, where the page that compares runs shows them side by side."""
        for key, level, bounds in _plots(row):
            series = stored.pictures.latest(key)
            title = f"{level.capitalize()} log-ratio, to step {row.step}"
            picture = heatmap_picture(series.bins(), series.steps(), title=title, bounds=bounds)
            self._client.log_image(self._run_id, picture, artifact_file=COMMON_PICTURE.format(level=level))

    def log_table(self, stored: StoredWindows, row: Row) -> None:
        """Logs a table of histograms whose rows are steps that other runs have too.

        MLflow's own ``log_table`` appends to the table of an earlier process, and shrinks its pictures.

        Args:
            stored: the run's windows.
            row: a window of the training, whose rule gives the columns.
        """
        with tempfile.TemporaryDirectory() as folder:
            columns = {f"{plot.level}_log_ratio": _save_cells(Path(folder), stored, plot) for plot in _plots(row)}
            steps = sorted({step for cells in columns.values() for step in cells})
            rows = [[step, *(_cell(cells.get(step)) for cells in columns.values())] for step in steps]
            table = Path(folder, TABLE_ARTIFACT)
            table.parent.mkdir(parents=True, exist_ok=True)
            table.write_text(json.dumps({"columns": ["step", *columns], "data": rows}))
            self._client.log_artifacts(self._run_id, folder)
        self._mark_as_table(TABLE_ARTIFACT)

    def log_worst_tokens(self, stored: StoredWindows) -> None:
        """Logs the worst tokens as the run's only table of them, at most 64 rows, in place of the previous one."""
        rows = table_rows(stored.worst)
        if rows:
            text = json.dumps({"columns": list(COLUMNS), "data": rows})
            self._client.log_text(self._run_id, text, WORST_ARTIFACT)
            self._mark_as_table(WORST_ARTIFACT)

    def log_report(self, timeline: Callable[[], Timeline]) -> None:
        """Logs the report if plotly is installed."""
        if find_spec("plotly") is None:
            log.info('MLflow: no %s was made; it needs pip install "ratioscope[report]"', REPORT_ARTIFACT)
            return
        self._client.log_text(self._run_id, report_html(timeline()), REPORT_ARTIFACT)

    def _mark_as_table(self, path: str) -> None:
        """Has MLflow show an artifact among a run's tables; its table view opens with the first one."""
        tables: list[Any] = json.loads(self._client.get_run(self._run_id).data.tags.get(_TABLES_TAG, "[]"))
        entry = {"path": path, "type": "table"}
        if entry not in tables:
            tables = sorted([*tables, entry], key=lambda table: str(table["path"]) == WORST_ARTIFACT)
            self._client.set_tag(self._run_id, _TABLES_TAG, json.dumps(tables), synchronous=True)


def _save_cells(folder: Path, stored: StoredWindows, plot: _Plot) -> dict[int, str]:
    """Saves the pictures of a table's column and returns their paths, relative to the folder, by step."""
    series = stored.pictures.latest(plot.key)
    cells: dict[int, str] = {}
    for step, index in table_steps(series.steps()).items():
        window = series.windows[index]
        first = series.windows[index - 1].last_step + 1 if index else window.first_step
        title = f"step {step}" if first >= window.last_step else f"steps {first} to {window.last_step}"
        cells[step] = f"{_CELLS}/{plot.level}_{step}.png"
        path = folder / cells[step]
        path.parent.mkdir(parents=True, exist_ok=True)
        cell_picture(series.bins()[index], title=title, bounds=plot.bounds).save(path)
    return cells


def _cell(path: str | None) -> dict[str, str] | None:
    return None if path is None else {"type": "image", "filepath": path, "compressed_filepath": path}
