"""What trackio has of a run, in its own database or on its server."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trackio.run import Run


def count_rows(run: Run) -> int | None:
    """Rows that are stored for good; None if that cannot be told, as on a network file system.

    Raises:
        ConnectionError: if the server is away.
    """
    from trackio import utils
    from trackio.sqlite_storage import SQLiteStorage

    if run.url is not None:
        return _count_on_server(run)
    if utils.get_storage_mode() != "sqlite":  # rows are appended to files that the dashboard reads in later
        return None
    return SQLiteStorage.get_log_count(run.project, run_id=run.id)


def forget_unsent(project: str, run_id: str) -> None:
    """Drops rows that trackio keeps for a server which did not take them: they come from the journal again.

    Sent by both they would be there twice.
    """
    from trackio.sqlite_storage import SQLiteStorage

    pending = SQLiteStorage.get_pending_logs(project)
    if pending is None:
        return
    pairs = zip(pending["ids"], pending["logs"], strict=True)
    SQLiteStorage.clear_pending_logs(project, [key for key, entry in pairs if entry["run_id"] == run_id])


def place(run: Run) -> str:
    """Where a run can be looked at: the command that shows it, or its server."""
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
