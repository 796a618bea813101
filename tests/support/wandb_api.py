"""Answers of the stand-in for W&B's server to ``wandb.Api`` and to clients that save a table or a workspace."""

from __future__ import annotations

import json
import re
from typing import Any

_USER = {"name": "u", "username": "u"}
_TIME = "2026-01-01T00:00:00Z"


def operation(query: str) -> str:
    """The name of a GraphQL operation that does not come with one."""
    found = re.search(r"\b(?:query|mutation)\s+(\w+)", query)
    return found.group(1) if found else ""


def answer(operation: str, variables: dict[str, Any], run: Any, bucket: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns the data of one GraphQL operation; None for an unknown one.

    Args:
        operation: its name.
        variables: its variables.
        run: what is stored of the run that they name; None if there is no such run.
        bucket: the run's own fields.
    """
    keys = None if run is None else {"lastStep": len(run.lines) - 1, "keys": {}}
    match operation:
        case "Run":
            more = {"state": "finished", "createdAt": _TIME, "heartbeatAt": _TIME, "readOnly": False, "user": _USER}
            whole = None if bucket is None else {**bucket, **more, "projectId": "1", "historyKeys": keys}
            return {"project": {"run": whole}}
        case "RunHistoryKeys":
            return {"project": {"run": {"historyKeys": keys}}}
        case "RunParquetHistory":  # nothing is exported yet, as in a young run
            return {"project": {"run": {"parquetHistory": {"parquetUrls": [], "liveData": []}}}}
        case "HistoryPage":
            steps = range(variables["minStep"], variables["maxStep"])
            rows = [json.dumps(row) for row in run.history if row["_step"] in steps]
            return {"project": {"run": {"history": rows}}}
        case "ArtifactType":
            return {"project": {"artifact": None}}
        case "CreateArtifact":
            sequence = {"id": "s1", "latestArtifact": None}
            return {"createArtifact": {"artifact": {"id": "a1", "state": "COMMITTED", "artifactSequence": sequence}}}
        case "UpsertView2":
            view = {"id": "v1", "name": variables["name"]}
            return {"upsertView": {"view": view, "inserted": True}}
    return None
