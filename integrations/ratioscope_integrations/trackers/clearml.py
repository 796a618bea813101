"""ClearML: scalars, native histograms and the config. Requires ``clearml``."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, ClassVar

from ratioscope.trackers.base import grouped
from ratioscope_integrations.trackers.clients import ClientTracker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.trackers.base import Row, RunContext


class ClearMLTracker(ClientTracker):
    """Writes to a ClearML task. What stands before a key's last slash is the title, the rest the series."""

    name: ClassVar[str] = "clearml"
    package: ClassVar[str] = "clearml"

    def _live(self, reporter: object | None) -> Any:
        from clearml import Task

        return Task.current_task() if reporter is None else getattr(reporter, "_clearml_task", None)

    def _new_identity(self) -> dict[str, str]:
        return {}  # the server chooses the id

    def _start(self, context: RunContext, identity: Mapping[str, str]) -> Any:
        """Opens a task that watches nothing else, or continues one without an offset of its iterations."""
        from clearml import Task

        known = identity.get("run_id")
        task = Task.init(
            project_name=os.environ.get("CLEARML_PROJECT") or "ratioscope",
            task_name=context.run_name or os.environ.get("CLEARML_TASK") or "ratioscope",
            reuse_last_task_id=known or False,
            continue_last_task=0 if known else False,
            output_uri=False,
            auto_connect_arg_parser=False,
            auto_connect_frameworks=False,
            auto_connect_streams=False,
            auto_resource_monitoring=False,
        )
        task.get_logger().set_flush_period(1.0)
        return task

    def _identify(self, run: Any) -> dict[str, str]:
        return {} if run.is_offline() else {"run_id": run.id}

    def _where(self, run: Any) -> str:
        if run.is_offline():
            return f"{run.get_offline_mode_folder()}.zip   (offline; to upload: clearml-task --import-offline-session)"
        return str(run.get_output_log_web_page())

    def _configure(self, run: Any, config: Mapping[str, Any]) -> None:
        text = json.dumps(config, indent=2, default=str)
        run.set_configuration_object("ratioscope", config_text=text, config_type="json")

    def _send(self, run: Any, row: Row) -> None:
        logger = run.get_logger()
        for key, value in {**row.scalars, **grouped(row.logs)}.items():
            title, series = _place(key)
            logger.report_scalar(title=title, series=series, value=value, iteration=row.step)
        for key, bins in row.histograms.items():
            title, series = _place(key)
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

    def _end(self, run: Any, patience: float) -> None:
        run.close()


def _place(key: str) -> tuple[str, str]:
    title, _, series = key.rpartition("/")
    return title or series or "/", series or title or "/"
