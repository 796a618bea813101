"""SwanLab: scalars, the config, and bar charts, because it has no histogram type.

Requires ``swanlab``.
"""

# The client is installed in one of the test layers only:
# pyright: reportMissingImports=false

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ratioscope.trackers.base import grouped
from ratioscope_integrations.trackers.client import ClientTracker
from ratioscope_integrations.trackers.names import clean_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.state.histogram import Bins
    from ratioscope.trackers.base import Row, RunContext


class SwanLabTracker(ClientTracker):
    """Writes to a SwanLab run."""

    name = "swanlab"
    package = "swanlab"

    def _live(self, reporter: object | None) -> Any:
        """Returns the live run, which transformers' reporter uses too."""
        import swanlab

        if reporter is not None and not getattr(reporter, "_initialized", False):
            return None
        with suppress(RuntimeError):  # raised since 0.8 if there is no live run
            return swanlab.get_run()
        return None

    def _new_identity(self) -> dict[str, str]:
        return {"run_id": secrets.token_hex(11)[:21]}

    def _start(self, context: RunContext, identity: Mapping[str, str]) -> Any:
        import swanlab

        own = None if context.output_dir is None else str(context.output_dir / "swanlog")
        return swanlab.init(
            project=os.environ.get("SWANLAB_PROJECT") or "ratioscope",
            experiment_name=context.run_name,
            logdir=os.environ.get("SWANLAB_LOG_DIR") or own,
            mode=os.environ.get("SWANLAB_MODE") or ("cloud" if os.environ.get("SWANLAB_API_KEY") else "offline"),
            id=identity["run_id"],
            resume="allow",
        )

    def _identify(self, run: Any) -> dict[str, str]:
        return {"run_id": run.id}

    def _where(self, run: Any) -> str:
        with suppress(ValueError):  # raised for a run that is not online
            return str(run.url)
        return f"{run.dir}   ({run.mode}; to upload: swanlab sync {run.dir})"

    def _configure(self, run: Any, config: Mapping[str, Any]) -> None:
        run.config.update({"ratioscope": dict(config)})

    def _send(self, run: Any, row: Row) -> None:
        data: dict[str, Any] = {clean_name(key): value for key, value in {**row.scalars, **grouped(row.logs)}.items()}
        data |= {key: _bars(bins) for key, bins in row.histograms.items()}
        run.log(data, step=row.step)

    def _end(self, run: Any) -> None:
        run.finish()


def _bars(bins: Bins) -> Any:
    import swanlab

    middles = (bins.edges[:-1] + bins.edges[1:]) / 2
    bar = swanlab.echarts.Bar()
    bar.add_xaxis([f"{middle:.4g}" for middle in middles])
    bar.add_yaxis("count", bins.counts.tolist(), category_gap=0)
    return bar
