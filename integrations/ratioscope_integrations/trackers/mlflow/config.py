"""A run's config in MLflow: parameters where there are none yet, changes as a tag, everything as one artifact."""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlflow import MlflowClient
    from mlflow.entities import Param

    from ratioscope.event import Event

CONFIG_ARTIFACT = "ratioscope/config.json"
CHANGES_TAG = "ratioscope.changed"
"""Tag of what differs from the parameters: those keep the value of the first time, which MLflow never changes."""

FINDING_TAG, FINDINGS_TAG = "ratioscope.finding", "ratioscope.findings"

_BATCH = 100
_MAX_NAME = 250
_MAX_VALUE = 6000
_SHORTER = (500, 250)
"""Value lengths to try with a server that refuses longer ones: the limits of older MLflow servers."""
_MAX_TAG = 5000

_logger = logging.getLogger("ratioscope")


def clean_name(name: str) -> str:
    """The nearest name that every MLflow server takes; one bad name would make it refuse the whole batch."""
    parts = [part for part in re.sub(r"[^\w\-. /]", "_", name).split("/") if part]
    return "/".join(part.replace(".", "_") if set(part) == {"."} else part for part in parts)[:_MAX_NAME] or "_"


def flat_params(config: Mapping[str, Any]) -> dict[str, str]:
    """The config as dotted parameters under ``ratioscope.``."""
    flat: dict[str, str] = {}

    def visit(prefix: str, value: Any) -> None:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                visit(f"{prefix}.{key}", inner)
        else:
            text = json.dumps(value, default=str) if isinstance(value, list | tuple | dict) else str(value)
            flat[clean_name(prefix)] = text[:_MAX_VALUE]

    visit("ratioscope", dict(config))
    return {} if not config else flat


def finding_tags(event: Event) -> dict[str, str]:
    """An event as tags: the finding's own, which each later event of it replaces, and how many findings are open."""
    went = "gone (was " + event.level + ")" if event.status == "gone" else event.level
    open_now = (event.errors, "error"), (event.warnings, "warning")
    follows = "" if event.because is None else f" · see {event.because}"
    said = f"{went}{follows} · {event.evidence}"[: _SHORTER[0] - 30] + f" · step {event.step}"
    return {
        clean_name(f"{FINDING_TAG}.{event.name}"): said,
        FINDINGS_TAG: ", ".join(f"{n} {level}{'' if n == 1 else 's'}" for n, level in open_now),
    }


def log_config(client: MlflowClient, run_id: str, config: Mapping[str, Any]) -> None:
    """Sends the config; what a resumed run has already is left as it was."""
    from mlflow.entities import Param

    wanted = flat_params(config)
    present: dict[str, str] = client.get_run(run_id).data.params
    missing = [Param(key, value) for key, value in wanted.items() if key not in present]
    for start in range(0, len(missing), _BATCH):
        _log_params(client, run_id, missing[start : start + _BATCH])
    changed = {key: value for key, value in wanted.items() if key in present and not _same(present[key], value)}
    if changed:
        _logger.warning("MLflow never changes a parameter; tag %s has the new values: %s", CHANGES_TAG, changed)
        client.set_tag(run_id, CHANGES_TAG, json.dumps(changed)[:_MAX_TAG], synchronous=True)
    client.log_dict(run_id, dict(config), CONFIG_ARTIFACT)


def _same(present: str, wanted: str) -> bool:
    return present == wanted or (len(present) in _SHORTER and wanted.startswith(present))


def _refused(error: Any) -> bool:
    """True if the server took the request in and did not like it, so that another form of it may pass."""
    return bool(error.get_http_status_code() == 400)


def _log_params(client: MlflowClient, run_id: str, params: list[Param]) -> None:
    """Sends one batch; if the server refuses it, one parameter at a time, shortened where that helps."""
    from mlflow.entities import Param
    from mlflow.exceptions import MlflowException

    try:
        client.log_batch(run_id, params=params, synchronous=True)
    except MlflowException as error:
        if not _refused(error):
            raise
        for param in params:
            _log_param(client, run_id, [param, *(Param(param.key, param.value[:length]) for length in _SHORTER)])


def _log_param(client: MlflowClient, run_id: str, forms: list[Param]) -> None:
    """Sends the first form that the server takes."""
    from mlflow.exceptions import MlflowException

    for param in forms:
        try:
            client.log_batch(run_id, params=[param], synchronous=True)
        except MlflowException as error:
            if not _refused(error):
                raise
        else:
            return
    _logger.warning("MLflow refused the parameter %s; %s has it", forms[0].key, CONFIG_ARTIFACT)
