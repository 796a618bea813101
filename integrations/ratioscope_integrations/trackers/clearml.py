"""ClearML: scalars, native histograms and the config, in a task that is live. Requires ``clearml``.

ClearML opens and closes a task on the main thread, where both may wait for its server. To never delay a training, this
tracker opens no task.
"""

# The client is installed in one of the test layers only:
# pyright: reportMissingImports=false

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ratioscope.trackers.base import grouped
from ratioscope_integrations.trackers.client import ClientTracker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.trackers.base import Row, RunContext


class ClearMLTracker(ClientTracker):
    """Writes to the trainer's or the user's task. A key's last slash separates title and series.

    Served inline, because ClearML queues reports itself.
    """

    name = "clearml"
    background = False
    package = "clearml"

    def open(self, run: RunContext) -> bool:
        """Attaches to the live task.

        Raises:
            RuntimeError: if neither trainer nor user opens one; the caller tries again at the next window.
        """
        if run.reporter is None and not self.attaches():
            msg = (
                "no ClearML task is live. Call clearml.Task.init(...) before training, or let the trainer report there"
            )
            raise RuntimeError(msg)
        return super().open(run)

    def _live(self, reporter: object | None) -> Any:
        from clearml import Task

        return Task.current_task() if reporter is None else getattr(reporter, "_clearml_task", None)

    def _start(self, context: RunContext, identity: Mapping[str, str]) -> Any:
        del context, identity
        return None  # `open` refuses to continue without a live task

    def _identify(self, run: Any) -> dict[str, str]:
        return {} if run.is_offline() else {"run_id": run.id}

    def _where(self, run: Any) -> str:
        return f"{run.get_offline_mode_folder()}   (offline)" if run.is_offline() else run.get_output_log_web_page()

    def _configure(self, run: Any, config: Mapping[str, Any]) -> None:
        text = json.dumps(config, indent=2, default=str)
        run.set_configuration_object("ratioscope", config_text=text, config_type="json")

    def _send(self, run: Any, row: Row) -> None:
        logger = run.get_logger()
        for key, value in {**row.scalars, **grouped(row.logs)}.items():
            title, series = _title_and_series(key)
            logger.report_scalar(title=title, series=series, value=value, iteration=row.step)
        for key, bins in row.histograms.items():
            title, series = _title_and_series(key)
            middles = (bins.edges[:-1] + bins.edges[1:]) / 2
            logger.report_histogram(
                title=title,
                series=series,
                values=bins.counts.tolist(),
                iteration=row.step,
                xlabels=[f"{middle:.4g}" for middle in middles],
                xaxis="log-ratio",
                yaxis="count",
                extra_layout={"bargap": 0},
            )

    def _end(self, run: Any) -> None:
        """Does nothing: the tracker opens no task."""


def _title_and_series(key: str) -> tuple[str, str]:
    title, _, series = key.rpartition("/")
    return title or series or "/", series or title or "/"
