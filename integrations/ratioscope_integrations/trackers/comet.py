"""Comet: scalars, native 3D histograms and the config. Requires ``comet_ml``.

Comet's histogram has its own bins, ten percent wide on either side of 0. It receives the fine buckets of two percent,
so that the tracker's even bins do not show in it.
"""

# The client is installed in one of the test layers only:
# pyright: reportMissingImports=false

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ratioscope.state.histogram import MAX_EXPONENT, representatives
from ratioscope.trackers.base import grouped
from ratioscope_integrations.trackers.client import ClientTracker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ratioscope.trackers.base import Row, RunContext

CONFIG_ASSET = "ratioscope/config.json"


class CometTracker(ClientTracker):
    """Writes to a Comet experiment."""

    name = "comet_ml"
    package = "comet_ml"

    def _live(self, reporter: object | None) -> Any:
        import comet_ml

        if reporter is not None:
            return getattr(reporter, "_experiment", None)
        experiment: Any = comet_ml.get_running_experiment()
        return experiment if getattr(experiment, "alive", False) else None

    def _start(self, context: RunContext, identity: Mapping[str, str]) -> Any:
        """Opens an experiment; an offline one without an API key, which Comet would ask for at the terminal."""
        import comet_ml
        from comet_ml.config import get_api_key, get_config

        folder = None if context.output_dir is None else context.output_dir / "comet"
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        return comet_ml.start(
            project_name=os.environ.get("COMET_PROJECT_NAME") or "ratioscope",
            experiment_key=identity["run_id"],
            mode="get_or_create",
            online=None if get_api_key(None, get_config()) else False,
            experiment_config=comet_ml.ExperimentConfig(
                name=context.run_name,
                offline_directory=None if folder is None else str(folder),
                log_code=False,
                log_graph=False,
                log_git_metadata=False,
                log_git_patch=False,
                log_env_details=False,
                parse_args=False,
                auto_output_logging=False,
                auto_param_logging=False,
                auto_metric_logging=False,
                display_summary_level=0,
            ),
        )

    def _identify(self, run: Any) -> dict[str, str]:
        return {"run_id": run.get_key()}

    def _where(self, run: Any) -> str:
        folder = getattr(run, "offline_directory", None)
        return run.url or f"{folder}   (offline; to upload: comet upload {folder}/{run.get_key()}*.zip)"

    def _configure(self, run: Any, config: Mapping[str, Any]) -> None:
        run.log_parameters({"ratioscope": dict(config)})
        run.log_asset_data(json.dumps(config, indent=2, default=str), name=CONFIG_ASSET, overwrite=True)

    def _send(self, run: Any, row: Row) -> None:
        from comet_ml.data_structure import Histogram

        for key, value in {**row.scalars, **grouped(row.logs)}.items():
            run.log_metric(key, value, step=row.step)
        for key in row.histograms:
            counts = row.record.counts(key.rpartition("/")[2])
            occupied = np.flatnonzero(counts)
            histogram = Histogram()
            histogram.add(_VALUES[occupied], counts=counts[occupied])
            run.log_histogram_3d(histogram, name=key, step=row.step)

    def _end(self, run: Any) -> None:
        run.end()


_VALUES: NDArray[np.float64] = np.clip(representatives(), -(2.0**MAX_EXPONENT), 2.0**MAX_EXPONENT)
"""Log-ratio of each bucket, bounded to the range of the histograms."""
