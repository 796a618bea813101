"""MLflow's server, experiment and run for a tracker."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from ssl import SSLError
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import urlopen

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mlflow import MlflowClient

    from ratioscope.trackers.base import RunContext

KEY_TAG = "ratioscope.key"
"""Tag that finds a run whose creation succeeded although the answer got lost."""

_TIMEOUT_S = 10.0


@dataclass
class Connection:
    """Connects to one run, which is created at the first call of ``attach`` if it does not exist.

    Attributes:
        uri: tracking URI.
        run_id: id of the run; None until it exists.
        experiment_id: id of its experiment, where that is known.
        artifact_root: URI for the artifacts of a new experiment; None for the server's default.
        continued: whether the run existed before this process attached to it.
        client: the client, made by the first ``attach``.
    """

    uri: str
    run_id: str | None = None
    experiment_id: str | None = None
    artifact_root: str | None = None
    continued: bool = False
    client: MlflowClient | None = None

    def attach(self, context: RunContext, key: str) -> tuple[MlflowClient, str]:
        """Returns client and run id. The first call connects, which takes seconds for a new database.

        Args:
            context: gives the new run's name, and the folder of a local database.
            key: value of :data:`KEY_TAG` for a new run; empty for no tag.
        """
        from mlflow import MlflowClient

        if self.client is None:
            if self.artifact_root is not None and context.output_dir is not None:
                context.output_dir.mkdir(parents=True, exist_ok=True)
            self.client = MlflowClient(self.uri)
        if self.run_id is None:
            self.experiment_id = _experiment_id(self.client, self.artifact_root)
            self.run_id, self.continued = _find_or_create(self.client, self.experiment_id, context.run_name, key)
        return self.client, self.run_id

    def where(self) -> str:
        """Returns the address that shows the run, or the command that serves it."""
        if self.run_id is None:
            return f"a run will be opened at {public_uri(self.uri)}"
        if self.uri.startswith("http"):
            return f"{public_uri(self.uri)}/#/experiments/{self.experiment_id or 0}/runs/{self.run_id}"
        return f"mlflow ui --backend-store-uri {shlex.quote(public_uri(self.uri))}   (run {self.run_id})"


def exists(uri: str) -> bool:
    """Returns False for a local database or folder that is not there: MLflow would make it, even to read from it."""
    parts = urlsplit(uri)
    if parts.scheme == "sqlite":
        file = unquote(parts.path.removeprefix("/"))
        return not file or file == ":memory:" or os.path.exists(file)
    if parts.scheme == "file":
        return os.path.exists(unquote(parts.path))
    # A word without a folder, such as "databricks", names a service.
    return parts.scheme != "" or os.sep not in uri or os.path.exists(uri)


def database_uri(output_dir: Path) -> str:
    """Returns the URI of a database in a folder; MLflow decodes ``%`` and would cut the path at ``?`` or ``#``."""
    path = output_dir.resolve().as_posix().replace("%", "%25").replace("?", "%3F").replace("#", "%23")
    return f"sqlite:///{path}/mlflow.db"


def uri_is_set() -> bool:
    """Returns whether the user chose a server."""
    import mlflow

    is_set: Callable[[], object] = mlflow.is_tracking_uri_set
    return bool(is_set())


def _experiment_id(client: MlflowClient, artifact_root: str | None) -> str:
    """Returns the id of the experiment for a new run, and creates the experiment if it does not exist."""
    from mlflow.exceptions import MlflowException

    name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
    identifier = os.environ.get("MLFLOW_EXPERIMENT_ID")
    if not name and identifier:
        return identifier
    name = name or "ratioscope"
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return client.create_experiment(name, artifact_location=artifact_root)
        except MlflowException:  # another process may have created it meanwhile
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
    return experiment.experiment_id


def _find_or_create(client: MlflowClient, experiment: str, name: str | None, key: str) -> tuple[str, bool]:
    """Returns the id of the run with this key, created if it does not exist, and whether it existed."""
    runs = client.search_runs([experiment], f"tags.`{KEY_TAG}` = '{key}'", max_results=1) if key else []
    if runs:
        return runs[0].info.run_id, True
    return client.create_run(experiment, run_name=name, tags={KEY_TAG: key} if key else None).info.run_id, False


def public_uri(uri: str) -> str:
    """Returns the URI without user name and password."""
    parts = urlsplit(uri)
    if "@" not in parts.netloc:
        return uri.rstrip("/")
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")


def server_version(uri: str) -> str | None:
    """Returns the version of a server; None if it does not report one, or if the URI is not a server's.

    Raises:
        ConnectionError: if no server answers; the client itself would retry for minutes.
    """
    if not uri.startswith(("http://", "https://")):
        return None
    try:
        with urlopen(f"{public_uri(uri)}/version", timeout=_TIMEOUT_S) as answer:
            text = str(answer.read(32).decode("ascii", "replace")).strip()
    except HTTPError:
        return None
    except OSError as error:
        if isinstance(getattr(error, "reason", None), SSLError):  # the client may be configured to trust the server
            return None
        msg = f"no MLflow server answers at {public_uri(uri)}: {error}"
        raise ConnectionError(msg) from error
    return text if text[:1].isdigit() else None
