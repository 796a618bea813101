"""Tracker that writes a line of JSON for each window to `ratioscope.jsonl` in the output directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ratioscope as rs


class JsonLinesTracker(rs.Tracker):
    """Writes each row to disk at once; a resumed run continues in the same file."""

    name = "jsonl"
    package = "ratioscope_jsonl"

    def __init__(self) -> None:
        self._path: Path | None = None

    def open(self, run: rs.RunContext) -> bool:
        """Writes the config as the first line of this process."""
        folder = run.output_dir or Path()
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "ratioscope.jsonl"
        self._append({"config": run.config})
        return True

    def write(self, row: rs.Row) -> None:
        """Writes one window."""
        histograms = {key: bins.to_json() for key, bins in row.histograms.items()}
        scalars = {**row.scalars, **row.logs}
        self._append({"step": row.step, "split": row.split, "scalars": scalars, "histograms": histograms})

    def close(self) -> None:
        """Does nothing: no row is held back."""

    def where(self) -> str:
        """Returns the file."""
        return "no file yet" if self._path is None else str(self._path)

    def _append(self, line: dict[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, default=str, allow_nan=False) + "\n")
