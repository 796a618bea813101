"""Asking a vLLM server what it was configured with."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import Request, urlopen

from ratioscope.config.lookup import UNKNOWN, lookup
from ratioscope.config.redaction import redact
from ratioscope_integrations.engines.vllm.settings import server_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["server_settings_from"]

_MAX_ANSWER = 1_000_000
"""Bytes that are read of one answer."""

_OPTIONS = {
    "dtype": "dtype",
    "quantization": "quantization",
    "q": "quantization",
    "kv-cache-dtype": "kv_cache_dtype",
    "logprobs-mode": "logprobs_mode",
    "enable-prefix-caching": "prefix_caching",
    "tensor-parallel-size": "tensor_parallel_size",
    "tp": "tensor_parallel_size",
    "enable-sleep-mode": "sleep_mode",
    "model-impl": "model_impl",
    "enforce-eager": "enforce_eager",
    "enable-return-routed-experts": "returns_routed_experts",
}
"""Options of ``vllm serve`` and the setting that each is."""


def server_settings_from(
    base_url: str,
    *,
    timeout: float = 2.0,
    api_key: str | None = None,
    start_options: str | Sequence[str] | None = None,
) -> dict[str, Any]:
    """Asks a vLLM server for its settings: a call of yours before the training, never made by a recorder.

    ``/version`` and ``/v1/models`` are on every server. ``/server_info`` has everything, and is there if the server was
    started with ``VLLM_SERVER_DEV_MODE=1``; where it is not, what you say in ``start_options`` is believed.

    Args:
        base_url: the server's address, such as ``"http://localhost:8000"``, with or without ``/v1``.
        timeout: seconds that each of three requests may wait.
        api_key: what the server was given as ``--api-key``; not recorded.
        start_options: the options of ``vllm serve``, as text or one by one. What they leave out stays unknown, since
            defaults depend on the version and the model.

    Returns:
        The entries of ``engine_settings``, with ``vllm_mode``, ``model`` and ``max_model_len``; what nobody tells is
        ``"unknown"``. Secrets are redacted.

    Raises:
        ConnectionError: if nobody answers at the address, or what answers is no vLLM.
        ValueError: if the address is no HTTP address.
    """
    root = _root(base_url)
    version = _ask(root, "/version", timeout, api_key)
    models = _ask(root, "/v1/models", timeout, api_key)
    info = _ask(root, "/server_info?config_format=json", timeout, api_key)
    if version is None and models is None and info is None:
        msg = f"no vLLM answers at {_public(root)}; expected the address of a running `vllm serve`"
        raise ConnectionError(msg)
    settings = server_settings(lookup(info, "vllm_config"))
    told = _told(start_options)
    known = {name: told.get(name, value) if value == UNKNOWN else value for name, value in settings.items()}
    served = lookup(models, "data")
    first = served[0] if isinstance(served, list) and served else None
    known |= {
        "vllm_version": lookup(version, "version"),
        "vllm_mode": "server",
        "model": lookup(first, "root"),
        "max_model_len": lookup(first, "max_model_len"),
    }
    safe: dict[str, Any] = redact({name: UNKNOWN if value is None else value for name, value in known.items()})
    return safe


def _root(base_url: str) -> str:
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        msg = f"got base_url={base_url!r}; expected an address such as 'http://localhost:8000'"
        raise ValueError(msg)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _public(root: str) -> str:
    """The address without a user's name or password."""
    parts = urlsplit(root)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _ask(root: str, path: str, timeout: float, api_key: str | None) -> Any:
    """What the server answers, as JSON; None if it does not have the path, or does not answer in JSON."""
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        with urlopen(Request(f"{_public(root)}{path}", headers=headers), timeout=timeout) as answer:
            return json.loads(answer.read(_MAX_ANSWER))
    except (HTTPError, ValueError):
        return None
    except OSError as error:
        msg = f"no vLLM server answers at {_public(root)}: {error}"
        raise ConnectionError(msg) from error


def _told(start_options: str | Sequence[str] | None) -> Mapping[str, Any]:
    """The settings that options of ``vllm serve`` name, also as ``--name=value``, ``--flag`` and ``--no-flag``."""
    words = shlex.split(start_options) if isinstance(start_options, str) else list(start_options or ())
    told: dict[str, Any] = {}
    for word, following in pairwise([*words, "--"]):
        if not word.startswith("-"):
            continue
        option, equals, value = word.partition("=")
        name = option.lstrip("-").replace("_", "-")
        if equals:
            told[name] = value
        elif not following.startswith("-"):
            told[name] = following
        elif name.startswith("no-"):
            told[name.removeprefix("no-")] = False
        else:
            told[name] = True
    return {
        _OPTIONS[name]: int(value) if str(value).isdigit() else value
        for name, value in told.items()
        if name in _OPTIONS
    }
