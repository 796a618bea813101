"""Config of a run in MLflow: parameters that it lacks, changed values as a tag, and the whole as one artifact."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from ratioscope.config.flatten import flatten
from ratioscope_integrations.trackers.names import clean_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlflow import MlflowClient
    from mlflow.entities import Param

    from ratioscope.event import Event

CONFIG_ARTIFACT = "ratioscope/config.json"
CHANGES_TAG = "ratioscope.changed"
"""Tag with values that differ from the parameters, which MLflow never changes once they are set."""

FINDING_TAG, FINDINGS_TAG = "ratioscope.finding", "ratioscope.findings"

_BATCH = 100
_MAX_VALUE = 6000
_SHORTER = (500, 250)
"""Value lengths to try if a server refuses a longer value: the limits of older MLflow servers."""
_MAX_TAG = 5000

_logger = logging.getLogger("ratioscope")


def flat_params(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the config as dotted parameters under ``ratioscope.``, with names and lengths that MLflow accepts."""
    return {clean_name(path): _text(value)[:_MAX_VALUE] for path, value in flatten(config, "ratioscope").items()}


def _text(value: Any) -> str:
    return json.dumps(value, default=str) if isinstance(value, list | tuple | dict) else str(value)


def finding_tags(event: Event) -> dict[str, str]:
    """Returns an event as two tags: the state of its finding, and the number of open findings."""
    state = "gone (was " + event.level + ")" if event.status == "gone" else event.level
    counts = (event.errors, "error"), (event.warnings, "warning")
    same = "" if event.because is None else f" · see {event.because}"
    text = f"{state}{same} · {event.evidence}"[: _SHORTER[0] - 30] + f" · step {event.step}"
    return {
        clean_name(f"{FINDING_TAG}.{event.name}"): text,
        FINDINGS_TAG: ", ".join(f"{n} {level}{'' if n == 1 else 's'}" for n, level in counts),
    }


def log_config(client: MlflowClient, run_id: str, config: Mapping[str, Any]) -> None:
    """Sends the config. Parameters that a resumed run already has stay as they are."""
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
    """Returns whether the server understood and refused the request, so that another form of it may pass."""
    return bool(error.get_http_status_code() == 400)


def _log_params(client: MlflowClient, run_id: str, params: list[Param]) -> None:
    """Sends one batch; if the server refuses it, one parameter at a time, shortened if necessary."""
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
    """Sends the first form that the server accepts."""
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
