"""DVCLive: scalars, the config, and a bar chart of the newest window's histogram. Requires ``dvclive``."""

# The client is in a layer of the tests, not in the environment:
# pyright: reportMissingImports=false

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar

from ratioscope.trackers.base import grouped
from ratioscope_integrations.trackers.client import ClientTracker
from ratioscope_integrations.trackers.mlflow.config import clean_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.trackers.base import Row, RunContext

_logger = logging.getLogger("ratioscope")


class DVCLiveTracker(ClientTracker):
    """Writes to the ``Live`` of transformers' reporter, within its step, else to one of its own."""

    name: ClassVar[str] = "dvclive"
    merges: ClassVar[bool] = True
    package: ClassVar[str] = "dvclive"

    @property
    def buffers(self) -> bool:
        """Never: a row is in files when it was written."""
        return False

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
        _logger.warning("DVCLive keeps one plot of a name: it shows the histogram of the newest window alone")
        run.log_params({"ratioscope": dict(config)})

    def _send(self, run: Any, row: Row) -> None:
        if self._owned:
            run.step = row.step
        for key, value in {**row.scalars, **grouped(row.logs)}.items():
            run.log_metric(clean_name(key), value)
        for key, bins in row.histograms.items():
            middles = ((bins.edges[:-1] + bins.edges[1:]) / 2).tolist()
            bars = [{"log_ratio": at, "count": n} for at, n in zip(middles, bins.counts.tolist(), strict=True)]
            run.log_plot(clean_name(key), bars, x="log_ratio", y="count", template="bar_horizontal")
        if self._owned:
            run.make_summary()

    def _end(self, run: Any, patience: float) -> None:
        run.end()
