"""Outputs of a real vLLM on CPU, compared with its own cumulative log-probabilities."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

DRIVER = Path(__file__).resolve().parents[2] / "support" / "drive_outputs.py"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Runs one engine with six settings of log-probabilities and returns its outputs."""
    folder = tmp_path_factory.mktemp("outputs")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(DRIVER.parents[1]), *filter(None, sys.path)])}
    with (folder / "log.txt").open("w") as log:
        command = [sys.executable, str(DRIVER), str(folder)]
        done = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=500)
    assert done.returncode == 0, (folder / "log.txt").read_text()[-4000:]
    seen: dict[str, Any] = json.loads((folder / "outputs.json").read_text())
    return seen


def test_log_probabilities_sum_to_vllms_cumulative_ones(seen: dict[str, Any]) -> None:
    """Rows sum to vLLM's cumulative log-probabilities for any number requested, in dicts or flat."""
    assert [(run["logprobs"], run["container"]) for run in seen["runs"]] == [
        (number, container) for number in (0, 1, 5) for container in ("list", "FlatLogprobs")
    ]
    for run in seen["runs"]:
        mask, logps = np.array(run["mask"]), np.array(run["logps"])
        assert [np.array(row)[m].tolist() for row, m in zip(run["rows"], mask, strict=True)] == run["tokens"]
        np.testing.assert_allclose(np.where(mask, logps, 0.0).sum(axis=1), run["cumulative"], rtol=1e-5, atol=1e-6)
        assert (logps[mask] <= 0).all()
        assert (logps[~mask] == 99.0).all()
        assert run["requests"] == [index for index in range(6) for _ in range(2)]
        assert set(run["counts"].values()) == {0}
        assert run["not_the_top"] > 10, "no token was sampled by which column 0 could be told from the sampled one"


def test_stop_token_has_its_log_probability(seen: dict[str, Any]) -> None:
    """A completion ended by a stop token has that token last, masked in and scored."""
    for run in seen["runs"]:
        ended = [row for row, reason in enumerate(run["stopped"]) if isinstance(reason, int)]
        assert ended
        for row in ended:
            last = len(run["tokens"][row]) - 1
            assert run["rows"][row][last] == run["stopped"][row]
            assert run["mask"][row][last]
            assert run["logps"][row][last] < 0


def test_settings_are_read_off_the_engine(seen: dict[str, Any]) -> None:
    """A live engine gives its version, its dtype and its log-probabilities' mode."""
    engine, sampling = seen["settings"]["engine"], seen["settings"]["sampling"]
    assert engine["vllm_version"].startswith("0.")
    assert engine["dtype"] in ("bfloat16", "float32")
    assert engine["logprobs_mode"] == "raw_logprobs"
    assert (engine["quantization"], engine["speculative_decoding"], engine["tensor_parallel_size"]) == ("none",) * 2 + (
        1,
    )
    assert (sampling["temperature"], sampling["top_p"], sampling["reshaped_by"]) == (1.0, 1.0, [])
