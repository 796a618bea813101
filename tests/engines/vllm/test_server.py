"""Settings of a vLLM server, requested over loopback."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ratioscope.config.lookup import UNKNOWN
from ratioscope_integrations.engines.vllm import engine_settings, sampling_settings, server_settings_from

if TYPE_CHECKING:
    from collections.abc import Iterator

MODELS = {"data": [{"id": "mine", "root": "some/model", "max_model_len": 512}]}
INFO = {
    "vllm_config": {
        "model_config": {"dtype": "torch.bfloat16", "logprobs_mode": "processed_logprobs", "quantization": None},
        "cache_config": {"cache_dtype": "auto", "enable_prefix_caching": True},
        "parallel_config": {"tensor_parallel_size": 2},
        "speculative_config": None,
    },
    "vllm_env": {},
}
ANSWERS = {"/version": {"version": "0.31.0"}, "/v1/models": MODELS}


@contextmanager
def server(answers: dict[str, Any], *, delay: float = 0.0, key: str | None = None) -> Iterator[tuple[str, list[str]]]:
    """Serves answers by path; yields the address and the list of requested paths."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            time.sleep(delay)
            path = self.path.partition("?")[0]
            allowed = key is None or self.headers["Authorization"] == f"Bearer {key}"
            self.send_response(401 if not allowed else 200 if path in answers else 404)
            self.end_headers()
            if allowed and path in answers:
                self.wfile.write(json.dumps(answers[path]).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{httpd.server_address[1]}", asked
        finally:
            httpd.shutdown()


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_server_in_development_mode_reports_every_setting(path: str) -> None:
    """Settings come from `/server_info`, the rest from `/version` and `/v1/models`, with or without `/v1`."""
    with server({**ANSWERS, "/server_info": INFO}) as (address, asked):
        settings = server_settings_from(address + path)
    assert asked == ["/version", "/v1/models", "/server_info?config_format=json"]
    assert settings["vllm_version"] == "0.31.0"
    assert (settings["model"], settings["max_model_len"]) == ("some/model", 512)
    assert (settings["dtype"], settings["quantization"], settings["tensor_parallel_size"]) == ("bfloat16", "none", 2)
    assert (settings["logprobs_mode"], settings["prefix_caching"]) == ("processed_logprobs", True)
    assert settings["enforce_eager"] == UNKNOWN
    assert settings.keys() > engine_settings(None).keys()


def test_a_server_without_development_mode_leaves_settings_unknown() -> None:
    """Without `/server_info` the version and the model are known and the engine's settings are not."""
    with server(ANSWERS) as (address, _):
        settings = server_settings_from(address)
    assert (settings["vllm_version"], settings["model"]) == ("0.31.0", "some/model")
    assert settings["dtype"] == settings["logprobs_mode"] == UNKNOWN


def test_api_key_is_sent_and_not_recorded() -> None:
    """Requests carry the key; neither the key nor a password in a model's path is in the settings."""
    models = {"data": [{"root": "https://me:hunter22@host/model", "max_model_len": 8}]}
    with server({"/v1/models": models}, key="k3y-of-the-server") as (address, _):
        settings = server_settings_from(address, api_key="k3y-of-the-server")
        with pytest.raises(ConnectionError, match="no vLLM answers at"):
            server_settings_from(address)
    assert settings["max_model_len"] == 8
    assert "hunter22" not in str(settings)
    assert "k3y" not in str(settings)


def test_unreachable_server_raises_within_the_timeout() -> None:
    """A closed port, a server that hangs and one that is not vLLM raise an error within the timeout."""
    with server(ANSWERS) as (address, _):
        pass
    with pytest.raises(ConnectionError, match=f"no vLLM server answers at {address}"):
        server_settings_from(address)
    with server(ANSWERS, delay=1.0) as (address, _):
        start = time.monotonic()
        with pytest.raises(ConnectionError, match="timed out"):
            server_settings_from(address, timeout=0.1)
        assert time.monotonic() - start < 1.0
    with server({}) as (address, _), pytest.raises(ConnectionError, match="expected the address of a running"):
        server_settings_from(address)
    with pytest.raises(ValueError, match="got base_url='localhost:8000'"):
        server_settings_from("localhost:8000")


def test_sampling_settings_list_reshaping_parameters() -> None:
    """Sampling parameters become the run config's section, with the names of those that reshape the distribution."""
    params = SimpleNamespace(
        temperature=0.7, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, logit_bias={5: 1.0}
    )
    assert sampling_settings(params, scoring_temperature=0.7) == {
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "scoring_temperature": 0.7,
        "overridden": [],
        "reshaped_by": ["logit_bias"],
    }
    assert sampling_settings(object())["top_p"] == UNKNOWN
