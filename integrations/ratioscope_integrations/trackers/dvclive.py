"""DVCLive: scalars, the config, and a bar chart of the newest window's histogram. Requires ``dvclive``."""

# The client is installed in one of the test layers only:
# pyright: reportMissingImports=false

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ratioscope.trackers.base import grouped
from ratioscope_integrations.trackers.client import ClientTracker
from ratioscope_integrations.trackers.names import clean_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.trackers.base import Row, RunContext

_logger = logging.getLogger("ratioscope")


class DVCLiveTracker(ClientTracker):
    """Writes to the ``Live`` of transformers' reporter, within its step, else to a new one."""

    name = "dvclive"
    merges = True
    package = "dvclive"

    uploads_later = False  # `write` stores the row in files

    def _live(self, reporter: object | None) -> Any:
        return getattr(reporter, "live", None)

    def _new_identity(self) -> dict[str, str]:
        return {}

    def _start(self, context: RunContext, identity: Mapping[str, str]) -> Any:
        from dvclive import Live

        own = "dvclive" if context.output_dir is None else str(context.output_dir / "dvclive")
        return Live(dir=identity.get("dir") or own, resume=True, report=None, save_dvc_exp=False, dvcyaml=None)

    def _identify(self, run: Any) -> dict[str, str]:
        return {"dir": str(run.dir)}

    def _where(self, run: Any) -> str:
        return f"{run.dir}   (dvc plots show)"

    def _configure(self, run: Any, config: Mapping[str, Any]) -> None:
        _logger.warning("DVCLive keeps one plot per name, so it shows the histogram of the newest window only")
        run.log_params({"ratioscope": dict(config)})

    def _send(self, run: Any, row: Row) -> None:
        if self._owned:
            run.step = row.step
        for key, value in {**row.scalars, **grouped(row.logs)}.items():
            run.log_metric(clean_name(key), value)
        for key, bins in row.histograms.items():
            middles = ((bins.edges[:-1] + bins.edges[1:]) / 2).tolist()
            counts = bins.counts.tolist()
            bars = [{"log_ratio": middle, "count": n} for middle, n in zip(middles, counts, strict=True)]
            run.log_plot(clean_name(key), bars, x="log_ratio", y="count", template="bar_horizontal")
        if self._owned:
            run.make_summary()

    def _end(self, run: Any) -> None:
        run.end()
