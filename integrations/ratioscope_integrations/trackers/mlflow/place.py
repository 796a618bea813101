"""Where a run of our own goes in MLflow: the server, the experiment and the run."""

from __future__ import annotations

import os
from ssl import SSLError
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import urlopen

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlflow import MlflowClient

KEY_TAG = "ratioscope.key"
"""Tag by which a run of our own is found again whose creation was answered to nobody."""

_TIMEOUT_S = 10.0


def uri_is_set() -> bool:
    """Whether anybody chose a server."""
    import mlflow

    is_set: Callable[[], object] = mlflow.is_tracking_uri_set
    return bool(is_set())


def experiment_id(client: MlflowClient, artifacts: str | None) -> str:
    """Id of the experiment for a run of our own; created if need be, with its artifacts at this place."""
    from mlflow.exceptions import MlflowException

    name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
    identifier = os.environ.get("MLFLOW_EXPERIMENT_ID")
    if not name and identifier:
        return identifier
    name = name or "ratioscope"
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.create_experiment(name, artifact_location=artifacts)
        except MlflowException:
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return found.experiment_id


def own_run(client: MlflowClient, experiment: str, name: str | None, key: str) -> tuple[str, bool]:
    """Id of the run with this key, created if need be, and whether it was there."""
    found = client.search_runs([experiment], f"tags.`{KEY_TAG}` = '{key}'", max_results=1) if key else []
    if found:
        return found[0].info.run_id, True
    return client.create_run(experiment, run_name=name, tags={KEY_TAG: key} if key else None).info.run_id, False


def public_uri(uri: str) -> str:
    """The URI without a user name or a password in it."""
    parts = urlsplit(uri)
    if "@" not in parts.netloc:
        return uri.rstrip("/")
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")


def server_version(uri: str) -> str | None:
    """Version that a server says it has; None if it does not say, or the URI is not of a server.

    Raises:
        ConnectionError: if nobody answers, which the client itself would find out after minutes.
    """
    if not uri.startswith(("http://", "https://")):
        return None
    try:
        with urlopen(f"{public_uri(uri)}/version", timeout=_TIMEOUT_S) as answer:
            text = str(answer.read(32).decode("ascii", "replace")).strip()
    except HTTPError:
        return None
    except OSError as error:
        if isinstance(getattr(error, "reason", None), SSLError):  # the client may be told to trust it nevertheless
            return None
        msg = f"no MLflow server answers at {public_uri(uri)}: {error}"
        raise ConnectionError(msg) from error
    return text if text[:1].isdigit() else None
