"""Real vLLM with one fault at a time: diagnosis, raw ratios and sweep."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ratioscope as rs
from ratioscope.cli.main import main
from ratioscope.diagnosis import diagnose
from ratioscope.journal.reader import JournalReader
from ratioscope.runs.pooled import PooledRun
from ratioscope.sweep.recommend import pool_of
from tests.support.drive_causes import RUNS, TOP_P
from tests.sweep.test_sweep import NUMBERS, mode, truth

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ratioscope.record import Record

    Array = NDArray[np.float64]

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1500)]

DRIVER = Path(__file__).resolve().parents[2] / "support" / "drive_causes.py"
CAUSES = {
    "top_p": ["support_truncation"],
    "top_k": ["support_truncation"],
    "temperature": ["temperature"],
    "never_synced": ["stale_weights"],
    "shifted": ["shifted_alignment"],
    "zero_filled": ["zero_filled"],
}
SETTINGS = ("top_p", "top_k", "temperature")
"""Faults that the config names; they follow the finding of their setting."""
FAULTY = [run for run in RUNS if not run.endswith("-none")]
HEALTHY = ["float32-none", "bfloat16-none"]
EDGES = (33 / 32 * 2.0**-5, 48 / 32 * 2.0**-4, 2.0**-2, 40 / 32 * 2.0**-1, 1.0)
"""Log-ratios at which a bucket ends."""
LEVELS = ("token", "sequence")
ACTIONS = ("truncate", "mask")


@dataclass(frozen=True)
class Trained:
    """Journals and batches of the runs."""

    folder: Path

    def batches(self, run: str) -> list[dict[str, NDArray[Any]]]:
        """Returns every generated batch."""
        return [dict(np.load(path)) for path in sorted((self.folder / "batches" / run).glob("*.npz"))]

    def records(self, run: str) -> list[Record]:
        """Returns the record of every window."""
        with JournalReader(self.folder / run) as journal:
            return list(journal.records())

    def valid(self, run: str, name: str) -> NDArray[Any]:
        """Returns one value of each valid token."""
        return np.concatenate([batch[name][batch["completion_mask"] == 1] for batch in self.batches(run)])

    def log_ratios(self, run: str, level: str) -> Array:
        """Computes raw log-ratios of tokens or completions: float32 differences, as in the trainer, float64 sums."""
        parts = []
        for batch in self.batches(run):
            mask = batch["completion_mask"] == 1
            d = (batch["old_per_token_logps"] - batch["sampling_per_token_logps"]).astype(np.float64)
            parts.append(d[mask] if level == "token" else np.where(mask, d, 0.0).sum(axis=1)[mask.any(axis=1)])
        return np.concatenate(parts)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Trains all runs in one process with one thread: two threads wait for each other on a busy machine."""
    folder = tmp_path_factory.mktemp("causes")
    paths = os.pathsep.join([str(DRIVER.parents[1]), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    with (folder / "log.txt").open("w") as log:
        command = [sys.executable, str(DRIVER), str(folder)]
        done = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=1200)
    assert done.returncode == 0, (folder / "log.txt").read_text()[-4000:]
    return Trained(folder)


def diagnosed(trained: Trained, run: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """Runs ``ratioscope diagnose``; returns its exit code and its diagnosis."""
    capsys.readouterr()
    code = main(["diagnose", str(trained.folder / run), "--json"])
    diagnosis: dict[str, Any] = json.loads(capsys.readouterr().out)["diagnosis"]
    return code, diagnosis


@pytest.mark.parametrize("run", FAULTY)
def test_the_fault_is_named(trained: Trained, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On an engine of either dtype the fault is an error of high confidence, alone or after its setting."""
    code, diagnosis = diagnosed(trained, run, capsys)
    fault = run.partition("-")[2]
    above = [finding for finding in diagnosis["findings"] if finding["level"] != "info"]
    expected = [*(["sampling_settings"] if fault in SETTINGS else []), *CAUSES[fault]]
    assert (code, [finding["name"] for finding in above]) == (1, expected), diagnosis
    assert {(finding["level"], finding["confidence"]) for finding in above} == {("error", "high")}, above


@pytest.mark.parametrize("run", [run for run in FAULTY if run != "float32-top_p"])
def test_the_fault_is_named_without_a_config(trained: Trained, run: str) -> None:
    """Without a config the numbers alone name the cause."""
    first = diagnose(trained.records(run)).findings[0]
    assert (first.name, first.level) == (CAUSES[run.partition("-")[2]][0], "error")


def test_an_even_nucleus_and_a_shift_are_not_distinguished_without_a_config(trained: Trained) -> None:
    """In flat contexts top_p moves all tokens equally; without a config neither top_p nor a shift is certain."""
    first = diagnose(trained.records("float32-top_p")).findings[0]
    assert first.name in ("support_truncation", "constant_shift")
    assert first.confidence == "medium"
    assert "top_p" in first.evidence


@pytest.mark.parametrize("run", HEALTHY)
def test_a_healthy_run_has_no_warning(trained: Trained, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A healthy run has precision noise as its only finding, as information, on an engine of either dtype."""
    code, diagnosis = diagnosed(trained, run, capsys)
    assert (code, [(finding["name"], finding["level"]) for finding in diagnosis["findings"]]) == (
        0,
        [("precision_noise", "info")],
    )
    dtypes = f"{run.partition('-')[0]} in the engine and float32 in the trainer"
    assert dtypes in diagnosis["findings"][0]["evidence"]
    assert diagnosis["explained"] == []
    assert [cause["name"] for cause in diagnosis["not_checked"]] == ["length_collapse"]  # the mode is one of tokens


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_mean_ratio_equals_the_nucleus_mass(trained: Trained, dtype: str) -> None:
    """With top_p 0.8 the mean raw ratio is the nucleus mass of the trainer's full distribution, within 2 %."""
    run = f"{dtype}-top_p"
    mass = trained.valid(run, "nucleus_mass")
    assert trained.valid(run, "full_logps") == pytest.approx(trained.valid(run, "old_per_token_logps"), abs=1e-4)
    assert mass.min() >= TOP_P
    pooled = pool_of(PooledRun.from_records(trained.records(run)))
    assert pooled is not None
    assert pooled.view.counts["token/n"] == mass.size > 10_000
    assert pooled.view.ratio_mean("token") == pytest.approx(mass.mean(), rel=0.02)
    assert mass.mean() < 0.9


def test_each_ratio_equals_the_nucleus_mass_with_equal_engines(trained: Trained) -> None:
    """With float32 on both sides a token's ratio is the nucleus mass at its position, except at few nuclei."""
    ratio = np.exp(trained.log_ratios("float32-top_p", "token"))
    off = np.abs(ratio - trained.valid("float32-top_p", "nucleus_mass"))
    assert np.mean(off > 5e-4) < 0.01


@pytest.mark.parametrize("run", ["bfloat16-none", "bfloat16-top_p", "bfloat16-temperature"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("action", ACTIONS)
def test_sweep_equals_a_recomputation(trained: Trained, run: str, level: str, action: str) -> None:
    """Sweep's counts are exact if the cap is a bucket's edge, and every interval contains the true value.

    A ratio equal to the cap is kept by the rule and counted as modified, as the sweep's text says.
    """
    d = trained.log_ratios(run, level)
    pooled = pool_of(PooledRun.from_records(trained.records(run)))
    assert pooled is not None
    for edge in EDGES:
        for lower in (None, math.exp(-edge)):
            rule = mode(f"{level}_{action}", lower, math.exp(edge))
            outcome, expected = pooled.outcome(rule), truth(d, rule)
            assert outcome.n == d.size
            for fraction, outside in ((outcome.above, d >= edge), (outcome.below, (d <= -edge) & (lower is not None))):
                assert fraction is not None
                assert fraction.error == 0.0
                assert round(fraction.value * d.size) == outside.sum()
            assert_contains_truth(outcome, expected)
    for upper in (1.05, 1.2, 1.5, 2.0, 3.0):
        for lower in (None, 0.5, 0.9):
            rule = mode(f"{level}_{action}", lower, upper)
            assert_contains_truth(pooled.outcome(rule), truth(d, rule))


def assert_contains_truth(outcome: Any, expected: Any) -> None:
    """Asserts that each interval contains the true value, up to the float32 in which the training counts weights."""
    for name in NUMBERS:
        interval, true = getattr(outcome, name), getattr(expected, name)
        if interval is None or true is None:
            assert interval is None
            assert true is None
            continue
        slack = 1e-7
        assert interval.low - slack <= true <= interval.high + slack, (outcome.correction, name, interval, true)


@pytest.mark.parametrize("run", ["bfloat16-none", "bfloat16-top_p"])
def test_the_runs_own_rule_is_exact(trained: Trained, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Fraction, mean and ESS of the training's own rule are the counted ones and equal the recomputation."""
    assert main(["sweep", str(trained.folder / run), "--clip-max", "2,3", "--json"]) == 0
    (own,) = [outcome for outcome in json.loads(capsys.readouterr().out)["outcomes"] if outcome["own"]]
    assert (own["mode"], own["lower"], own["upper"]) == ("token_truncate", None, 1.2)
    expected = truth(trained.log_ratios(run, "token"), rs.Correction("token", "truncate", upper=1.2))
    for name in NUMBERS:
        assert own[name]["low"] == own[name]["high"]
        assert own[name]["value"] == pytest.approx(getattr(expected, name), rel=1e-6), name
