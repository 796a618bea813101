"""Rows of a run that trackio has stored, in its database or on its server."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trackio.run import Run


def count_rows(run: Run) -> int | None:
    """Counts the rows that are stored; None if trackio cannot count them, as on a network file system.

    Raises:
        ConnectionError: if the server does not answer.
    """
    from trackio import utils
    from trackio.sqlite_storage import SQLiteStorage

    if run.url is not None:
        return _count_on_server(run)
    if utils.get_storage_mode() != "sqlite":  # rows go to files that the dashboard reads later
        return None
    return SQLiteStorage.get_log_count(run.project, run_id=run.id)


def forget_unsent(project: str, run_id: str) -> None:
    """Drops rows that trackio keeps for a server that did not take them.

    The journal sends these rows again, and trackio would store them twice.
    """
    from trackio.sqlite_storage import SQLiteStorage

    pending = SQLiteStorage.get_pending_logs(project)
    if pending is None:
        return
    pairs = zip(pending["ids"], pending["logs"], strict=True)
    SQLiteStorage.clear_pending_logs(project, [key for key, entry in pairs if entry["run_id"] == run_id])


def location(run: Run) -> str:
    """Returns the command that shows a run, or its server."""
    if run.url is not None:
        return f"{run.url}, project {run.project}, run {run.name}"
    folder = os.environ.get("TRACKIO_DIR")
    setting = f"TRACKIO_DIR={shlex.quote(folder)} " if folder else ""
    return f"{setting}trackio show --project {shlex.quote(run.project)}"


def _count_on_server(run: Run) -> int:
    from huggingface_hub import get_token
    from trackio.remote_client import RemoteClient

    space: str | None = getattr(run, "_space_id", None)
    try:
        client: Any = RemoteClient(
            str(run.url),
            hf_token=get_token() if space else None,
            write_token=getattr(run, "_write_token", None),
            verbose=False,
        )
        summary = client.predict(api_name="/get_run_summary", project=run.project, run_id=run.id)
        return int(summary["num_logs"])
    except Exception as error:
        msg = f"trackio's server {run.url} does not say what it has: {error}"
        raise ConnectionError(msg) from error
