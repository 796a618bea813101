"""Query of a running vLLM server for its settings."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import Request, urlopen

from ratioscope.config.lookup import UNKNOWN, lookup
from ratioscope.config.redaction import redact
from ratioscope_integrations.engines.vllm.settings import server_settings

__all__ = ["server_settings_from"]

_MAX_ANSWER = 1_000_000
"""Bytes that are read of one answer."""


def server_settings_from(base_url: str, *, timeout: float = 2.0, api_key: str | None = None) -> dict[str, Any]:
    """Asks a vLLM server for its settings. Call it before the training; a recorder never does.

    ``/version`` and ``/v1/models`` are on every server. ``/server_info`` has every setting, but only if the server was
    started with ``VLLM_SERVER_DEV_MODE=1``. Settings that you know can be added to the result.

    Example:
        >>> server_settings_from("http://localhost:8000") | {"dtype": "bfloat16"}  # doctest: +SKIP

    Args:
        base_url: the server's address, such as ``"http://localhost:8000"``, with or without ``/v1``.
        timeout: seconds that each of three requests may wait.
        api_key: the server's ``--api-key``; not recorded.

    Returns:
        The entries of ``engine_settings``, with ``vllm_mode``, ``model`` and ``max_model_len``; a setting that the
        server does not report is ``"unknown"``. Secrets are redacted.

    Raises:
        ConnectionError: if no vLLM server answers at the address.
        ValueError: if the address is not an HTTP address.
    """
    root = _root(base_url)
    version = _ask(root, "/version", timeout, api_key)
    models = _ask(root, "/v1/models", timeout, api_key)
    info = _ask(root, "/server_info?config_format=json", timeout, api_key)
    if version is None and models is None and info is None:
        msg = f"no vLLM answers at {_public(root)}; expected the address of a running `vllm serve`"
        raise ConnectionError(msg)
    served = lookup(models, "data")
    first = served[0] if isinstance(served, list) and served else None
    settings = server_settings(lookup(info, "vllm_config")) | {
        "vllm_version": lookup(version, "version"),
        "vllm_mode": "server",
        "model": lookup(first, "root"),
        "max_model_len": lookup(first, "max_model_len"),
    }
    safe: dict[str, Any] = redact({name: UNKNOWN if value is None else value for name, value in settings.items()})
    return safe


def _root(base_url: str) -> str:
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        msg = f"got base_url={base_url!r}; expected an address such as 'http://localhost:8000'"
        raise ValueError(msg)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _public(root: str) -> str:
    """Removes a user's name and password from an address."""
    parts = urlsplit(root)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _ask(root: str, path: str, timeout: float, api_key: str | None) -> Any:
    """Requests a path; returns None if the server does not have it, or does not answer in JSON."""
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        with urlopen(Request(f"{_public(root)}{path}", headers=headers), timeout=timeout) as answer:
            return json.loads(answer.read(_MAX_ANSWER))
    except (HTTPError, ValueError):
        return None
    except OSError as error:
        msg = f"no vLLM server answers at {_public(root)}: {error}"
        raise ConnectionError(msg) from error
