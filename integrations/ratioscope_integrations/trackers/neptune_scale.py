"""Neptune: scalars, native histograms and the config. Requires ``neptune-scale``.

Transformers' own reporter is of Neptune's older client, whose runs this one cannot write to; give
``NeptuneScaleTracker`` a run of ``neptune_scale`` to write to that.
"""

# The client is in a layer of the tests, not in the environment:
# pyright: reportMissingImports=false

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from ratioscope.trackers.base import grouped
from ratioscope_integrations.trackers.client import ClientTracker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.trackers.base import Row, RunContext


class NeptuneScaleTracker(ClientTracker):
    """Writes to a run of ``neptune_scale`` in the project ``NEPTUNE_PROJECT``."""

    name: ClassVar[str] = "neptune_scale"
    package: ClassVar[str] = "neptune_scale"

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

        at = datetime.fromtimestamp(row.time, tz=UTC)
        run.log_metrics({**row.scalars, **grouped(row.logs)}, step=row.step, timestamp=at)
        shown = {key: Histogram(bin_edges=bins.edges, counts=bins.counts) for key, bins in row.histograms.items()}
        if shown:
            run.log_histograms(shown, step=row.step, timestamp=at)

    def _end(self, run: Any, patience: float) -> None:
        run.close(timeout=patience)
