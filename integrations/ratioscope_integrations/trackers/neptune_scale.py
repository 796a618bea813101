"""Neptune: scalars, native histograms and the config. Requires ``neptune-scale``.

Transformers' own reporter uses Neptune's older client, to whose runs this client cannot write. Pass a run of
``neptune_scale`` to ``NeptuneScaleTracker`` to write to it.
"""

# The client is installed in one of the test layers only:
# pyright: reportMissingImports=false

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ratioscope.trackers.base import grouped
from ratioscope_integrations.trackers.client import ClientTracker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.trackers.base import Row, RunContext


class NeptuneScaleTracker(ClientTracker):
    """Writes to a run of ``neptune_scale`` in the project ``NEPTUNE_PROJECT``."""

    name = "neptune_scale"
    package = "neptune_scale"

    def _start(self, context: RunContext, identity: Mapping[str, str]) -> Any:
        from neptune_scale import Run

        own = None if context.output_dir is None else context.output_dir / "neptune"
        return Run(
            run_id=identity["run_id"],
            experiment_name=context.run_name,
            log_directory=os.environ.get("NEPTUNE_LOG_DIRECTORY") or own,
            enable_console_log_capture=False,
            source_tracking_config=None,
        )

    def _identify(self, run: Any) -> dict[str, str]:
        return {"run_id": run._run_id}

    def _where(self, run: Any) -> str:
        if run._sync_process is None:
            return f"{run._storage_directory_path}   (offline; to upload: neptune sync)"
        return str(run.get_run_url())

    def _configure(self, run: Any, config: Mapping[str, Any]) -> None:
        run.log_configs({"ratioscope": dict(config)}, flatten=True, cast_unsupported=True)

    def _send(self, run: Any, row: Row) -> None:
        from neptune_scale.types import Histogram

        timestamp = datetime.fromtimestamp(row.time, tz=UTC)
        run.log_metrics({**row.scalars, **grouped(row.logs)}, step=row.step, timestamp=timestamp)
        histograms = {key: Histogram(bin_edges=bins.edges, counts=bins.counts) for key, bins in row.histograms.items()}
        if histograms:
            run.log_histograms(histograms, step=row.step, timestamp=timestamp)

    def _end(self, run: Any) -> None:
        run.close(timeout=self._close_timeout)
