"""Third-party logs: which metrics are read, which findings follow, and which data is reported as unknown."""

from __future__ import annotations

import html
import json
import subprocess
import sys
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import ratioscope as rs
from ratioscope.cli.main import main
from ratioscope.diagnosis import diagnose
from ratioscope.diagnosis.read import read_run, run_of
from ratioscope.metrics.catalogue import CATALOGUE
from ratioscope.report.page.page import compare_html, report_html
from ratioscope.report.terminal import render
from ratioscope.report.verdict.verdict import verdict
from ratioscope.runs.foreign.adopt import adopt, find, is_known
from ratioscope.runs.foreign.config import config_of
from ratioscope.runs.foreign.names import NAMES
from ratioscope.runs.read import read
from ratioscope.runs.timeline import Timeline
from tests.support.local_server import environment
from tests.support.timelines import make_timeline

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GAP = "sampling/sampling_logp_difference"
RATIO = "sampling/importance_sampling_ratio"
APART = "ratioscope/log_ratio/abs_mean"
JUMP = (0.010, 0.018, 0.201, 0.25)
"""Mean |d| of the generations of a run whose engine reloads other weights (huggingface/trl#5312)."""
ARGUMENTS = {
    "num_generations": 8,
    "temperature": 1.0,
    "top_p": 0.8,
    "top_k": 0,
    "use_vllm": True,
    "vllm_mode": "colocate",
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "token_truncate",
    "vllm_importance_sampling_clip_max": 3.0,
    "vllm_importance_sampling_clip_min": None,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": 1,
    "num_iterations": 1,
}
"""What matters of the arguments of TRL's GRPOConfig."""


def trl_logs(mismatch: float, ratio: float = 0.999) -> dict[str, float]:
    """Returns TRL's log entries of a window with the given mean absolute log-ratio."""
    gap = {f"{GAP}/mean": mismatch, f"{GAP}/max": 20 * mismatch}
    return {"loss": 0.1, **gap, f"{RATIO}/min": 0.4, f"{RATIO}/mean": ratio, f"{RATIO}/max": 2.0}


def write_state(folder: Path, values: Any = JUMP) -> Path:
    """Writes a trainer_state.json like transformers, with an evaluation in between."""
    from transformers import TrainerState

    log = [{"epoch": k / 10, "step": k, **trl_logs(value)} for k, value in enumerate(values, 1)]
    log.insert(2, {"epoch": 0.2, "step": 2, "eval_loss": 1.0, f"eval_{GAP}/mean": 0.02})
    folder.mkdir(parents=True, exist_ok=True)
    TrainerState(global_step=len(values), log_history=log).save_to_json(str(folder / "trainer_state.json"))
    return folder / "trainer_state.json"


def jump_is_found(address: str | Path) -> None:
    """Checks that the jump is named and dated without certainty, and that no unknown cause is called clean."""
    found = diagnose(read_run(address))
    (finding,) = [each for each in found.findings if each.level == "error"]
    assert (finding.name, finding.confidence, finding.steps) == ("wrong_weights", "medium", (3, 4))
    assert "a few absurd tokens" in finding.evidence
    assert {"support_truncation", "outliers", "missing_logprobs"} <= {item.name for item in found.not_checked}
    assert set(found.passed) == {"identical", "unexplained"}
    read_from = {each["key"]: each for each in found.to_json()["read_from"]}
    assert read_from[f"{GAP}/mean"]["relation"] == "near"
    assert "after the cut" in read_from[f"{RATIO}/mean"]["differs"]


def test_a_trainer_state_is_read_from_any_path(tmp_path: Path) -> None:
    """File, checkpoint and output directory give one run; TRL's metrics stand in for ours and are labelled."""
    state = write_state(tmp_path / "out" / "checkpoint-4")
    for address in (state, state.parent, tmp_path / "out"):
        timeline = read(address)
        assert (timeline.name, timeline.windows) == ("out", {"train": 4, "eval": 1})
        assert timeline.scalars[APART].values == list(JUMP)
        assert timeline.scalars[APART].origin == f"{GAP}/mean"
        assert timeline.scalars[f"eval/{APART}"].values == [0.02]
        assert not [key for key in timeline.scalars if "raw" in key or "modified" in key]
        jump_is_found(address)


def test_the_report_of_a_third_party_log_names_its_limits(tmp_path: Path) -> None:
    """Verdict, terminal and page name the jump, the substitutes and missing data; empty figures are left out."""
    from rich.console import Console

    write_state(tmp_path)
    timeline = read(tmp_path)
    lines = verdict(timeline)
    assert lines[0].level == "bad"
    assert lines[0].text.startswith("Most likely cause: wrong_weights")
    text = " ".join(line.text for line in lines)
    assert "the distribution of the raw ratios; the share of ratios that the correction changes" in text
    assert "Not ratioscope's own log" in text
    assert not [line for line in lines if "valid token" in line.text or line.level == "good"]
    page = report_html(timeline)
    assert 'class="card absent"' not in page
    assert page.count('class="plot') == 2
    assert "What was read" in page
    assert "could not be checked" in page
    assert "1970-01" not in page
    console = Console(width=120, record=True, file=StringIO())
    console.print(render(timeline))
    assert f"{RATIO}/mean" in console.export_text()
    compared = compare_html([timeline, make_timeline(12)])
    assert "Mismatch between the engines" in compared
    assert "another trainer's numbers" in html.unescape(compared)


def test_commands_accept_a_third_party_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """report, compare, diagnose and check read it; a limit names its source, an unmeasured one is not met."""
    write_state(tmp_path / "a")
    write_state(tmp_path / "b", [0.01] * 4)
    assert main(["report", str(tmp_path / "a"), "-o", str(tmp_path / "r.html")]) == 0
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert main(["diagnose", str(tmp_path / "a")]) == 1
    assert f"{GAP}/mean for {APART}" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "a"), "--max", "log_ratio/abs_mean=0.1"]) == 1
    assert f"read from {GAP}/mean (a mean over ranks" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "b"), "--max", f"{GAP}/mean=0.1"]) == 0
    assert main(["check", str(tmp_path / "b"), "--max", "modified/fraction=0.9"]) == 1


def test_an_unreadable_path_is_reported(tmp_path: Path) -> None:
    """A path without a run gives the accepted inputs; a log without known metrics gives the known names."""
    with pytest.raises(FileNotFoundError, match=r"where no run is; expected .* trainer_state.json .* TensorBoard"):
        read(tmp_path)
    for text, error in (("{", "no JSON"), ("[]", "no log_history")):
        (tmp_path / "trainer_state.json").write_text(text)
        with pytest.raises(ValueError, match=error):
            read(tmp_path)
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": [{"step": 1, "loss": 1.0, "kl": 0.1}]}))
    with pytest.raises(LookupError, match="vllm_importance_sampling_correction are on"):
        read(tmp_path)


def test_equal_log_probabilities_and_empty_windows_are_not_distinguished(tmp_path: Path) -> None:
    """TRL logs 0 for both, and the finding says so."""
    write_state(tmp_path, [0.0] * 5)
    finding = diagnose(read_run(tmp_path)).findings[0]
    assert (finding.name, finding.confidence) == ("identical", "medium")
    assert "without a token looks the same" in finding.evidence


def write_events(folder: Path, values: Any, *, first: int = 1) -> None:
    """Writes an event file like transformers' callback."""
    from torch.utils.tensorboard import SummaryWriter
    from transformers.integrations.integration_utils import rewrite_logs

    with SummaryWriter(str(folder)) as writer:
        writer.add_text("args", json.dumps(ARGUMENTS))
        for step, value in enumerate(values, first):
            for key, number in rewrite_logs({**trl_logs(value), f"eval_{GAP}/mean": value}).items():
                writer.add_scalar(key, number, step)


@pytest.mark.trackers
def test_event_files_are_read(tmp_path: Path) -> None:
    """A folder, its parent and the address are read; a resumed training's second file supersedes repeated steps."""
    pytest.importorskip("tensorboard")
    folder = tmp_path / "out" / "runs" / "one"
    write_events(folder, [0.010, 0.018, 0.5, 0.5, 0.5])
    write_events(folder, JUMP[2:], first=3)
    for address in (folder, tmp_path / "out", f"tensorboard:{folder}"):
        timeline = read(address)
        assert timeline.scalars[APART].values == pytest.approx(JUMP)  # float32 in the file
        assert timeline.windows == {"train": 4, "eval": 4}
        assert (timeline.name, timeline.config["sampling"]["top_p"]) == ("one", 0.8)
    first = min(folder.glob("events*"), key=lambda file: file.stat().st_mtime_ns)
    assert read(first).scalars[APART].values == pytest.approx([0.010, 0.018, 0.5, 0.5, 0.5])
    found = diagnose(read_run(folder))
    assert [each.name for each in found.findings] == ["sampling_settings", "wrong_weights"]
    write_events(tmp_path / "out" / "runs" / "two", JUMP)
    with pytest.raises(LookupError, match=r"event files of 2 runs; .* runs/one, runs/two"):
        read(tmp_path / "out")
    with pytest.raises(FileNotFoundError, match="found none"):
        read(f"tensorboard:{tmp_path / 'nowhere'}")


@pytest.mark.trackers
def test_our_own_event_files_equal_the_journal(tmp_path: Path) -> None:
    """Scalars and config of our own run come back without histograms, and nothing counts as third-party."""
    rollout = -torch.rand(4, 16) - 0.1
    rule = rs.Correction("token", "truncate", upper=1.2)
    with rs.Recorder(report_to="tensorboard", correction=rule, output_dir=tmp_path) as recorder:
        for step in (1, 2):
            recorder.observe(rollout + 0.1 * torch.randn(4, 16), rollout, torch.ones(4, 16))
            recorder.flush(step=step)
    kept, received = read(tmp_path), read(f"tensorboard:{tmp_path}")
    assert received.scalars.keys() == kept.scalars.keys()
    assert received.scalars[APART].values == pytest.approx(kept.scalars[APART].values)
    assert (received.windows, received.foreign) == (kept.windows, {})
    assert received.config["correction"] == kept.config["correction"]


@pytest.mark.trackers
def test_an_mlflow_run_of_transformers_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An MLflow run with the names and parameters of transformers' callback is read."""
    mlflow = pytest.importorskip("mlflow")
    store = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    mlflow.set_tracking_uri(store)
    try:
        with mlflow.start_run() as run:
            mlflow.log_params(ARGUMENTS)
            for step, value in enumerate(JUMP, 1):
                mlflow.log_metrics({**trl_logs(value), f"eval_{GAP}/mean": value}, step=step)
        address = f"mlflow:{run.info.run_id}"
        timeline = read(address)
        assert timeline.scalars[APART].values == list(JUMP)
        assert timeline.windows == {"train": 4, "eval": 4}
        assert timeline.config["correction"] == config_of(ARGUMENTS)["correction"]
        assert [each.name for each in diagnose(read_run(address)).findings] == ["sampling_settings", "wrong_weights"]
    finally:
        mlflow.set_tracking_uri(None)


@pytest.fixture
def wandb_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Replaces W&B's API by a stand-in."""
    pytest.importorskip("wandb")
    from tests.support.faults import wandb_online

    with wandb_online(monkeypatch) as server:
        yield server


@pytest.mark.trackers
def test_third_party_wandb_runs_are_read(wandb_server: Any, tmp_path: Path) -> None:
    """W&B runs are read: TRL's keys under train/ with its arguments, verl's keys by W&B's own step."""
    import wandb
    from transformers.integrations.integration_utils import rewrite_logs

    with wandb.init(project="p", dir=tmp_path, config=ARGUMENTS) as live:
        for step, value in enumerate(JUMP, 1):
            live.log({**rewrite_logs({**trl_logs(value), f"eval_{GAP}/mean": value}), "train/global_step": step})
    timeline = read(f"wandb:ent/p/{live.id}")
    assert timeline.scalars[APART].values == list(JUMP)
    assert timeline.windows == {"train": 4, "eval": 4}
    assert timeline.config["correction"]["upper"] == 3.0
    with wandb.init(project="p", dir=tmp_path) as live:
        for k in range(12):
            k3 = 1e-4 if k < 6 else 2e-2
            live.log({"rollout_corr/k3_kl": k3, "rollout_corr/kl": k3, "rollout_corr/rollout_is_std": 0.1})
    found = diagnose(read_run(f"wandb:ent/p/{live.id}"))
    assert found.findings[0].name == "wrong_weights"
    assert found.findings[0].evidence.startswith(
        "sqrt(2 k3), about the root mean square of d, jumps from 0.0141 to 0.2"
    )


_TRACKIO = """
import sys, torch, trackio
import ratioscope as rs
from ratioscope.runs.read import read
from tests.runs.test_foreign import APART, ARGUMENTS, JUMP, jump_is_found, trl_logs
trackio.init(project="p", name="theirs", config=ARGUMENTS)
for step, value in enumerate(JUMP, 1):
    trackio.log({**{"train/" + key: number for key, number in trl_logs(value).items()}, "train/global_step": step})
trackio.finish()
found = read("trackio:p/theirs")
assert found.scalars[APART].values == list(JUMP), found.scalars
assert found.config["sampling"]["top_p"] == 0.8
rollout = -torch.rand(4, 16) - 0.1
with rs.Recorder(report_to="trackio", output_dir=sys.argv[1]) as recorder:
    for step in (1, 2):
        recorder.observe(rollout + 0.1 * torch.randn(4, 16), rollout, torch.ones(4, 16))
        recorder.flush(step=step)
kept = read(sys.argv[1])
(run,) = trackio.Api().runs("ratioscope")
ours = read(f"trackio:ratioscope/{run.name}")
assert ours.scalars[APART].values == kept.scalars[APART].values
assert ours.scalars.keys() == kept.scalars.keys(), ours.scalars.keys() ^ kept.scalars.keys()
for wrong in ("p/none", "none/none"):
    try:
        read(f"trackio:{wrong}")
    except LookupError:
        continue
    raise AssertionError(wrong)
"""


@pytest.mark.trackers
@pytest.mark.slow
def test_a_trackio_run_is_read(tmp_path: Path) -> None:
    """TRL's and our runs are read from trackio's database."""
    pytest.importorskip("trackio")
    command = [sys.executable, "-c", _TRACKIO, str(tmp_path / "out")]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(tmp_path), cwd=tmp_path, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_arguments_make_a_config() -> None:
    """TRL's arguments, as a mapping or MLflow's text, give a config; generation_kwargs win; others give none."""
    texts = {name: str(value) for name, value in ARGUMENTS.items()}
    assert config_of(texts) == config_of(ARGUMENTS)
    rule = {"enabled": True, "mode": "token_truncate", "level": "token", "action": "truncate"}
    assert config_of(ARGUMENTS)["correction"] == {**rule, "lower": "none", "upper": 3.0}
    assert config_of({**ARGUMENTS, "generation_kwargs": {"top_p": 1.0}})["sampling"]["top_p"] == 1.0
    assert config_of({**ARGUMENTS, "vllm_importance_sampling_correction": False})["correction"] == {"enabled": False}
    assert config_of({"learning_rate": 1e-3, "top_p": 0.5}) == {}


def test_truncation_needs_a_token_mode(tmp_path: Path) -> None:
    """TRL's means and arguments together name truncated sampling in a token mode, and not in a sequence mode."""
    timeline = Timeline()
    for step in range(8):
        logs = trl_logs(0.215, 0.81 + 0.004 * (-1) ** step)
        timeline.add(step, "train", 0.0, {key: value for key, value in logs.items() if is_known(key)}, {})
    adopt(timeline)
    for mode, expected in (("token_truncate", "medium"), ("sequence_mask", None)):
        timeline.config = config_of({**ARGUMENTS, "vllm_importance_sampling_mode": mode})
        found = {each.name: each.confidence for each in diagnose(run_of(timeline)).findings}
        assert found.get("support_truncation") == expected


# Names ---------------------------------------------------------------------------------------------------------------

LOG_RATIO = [[0.0, 0.5, -0.7, -6.0], [1.5, -2.0, 0.1, 0.3], [0.2, -6.0, -6.0, -6.0]]
ROLLOUT = [[-0.5, -1.0, -1.5, -3.0], [-2.5, -0.4, -1.0, -0.9], [-0.8, -3.0, -3.0, -3.0]]
MASK = [[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
THEIRS = {
    "rollout_corr/kl": 0.0125,
    "rollout_corr/k3_kl": 0.442345,
    "rollout_corr/chi2_token": 2.57551,
    "rollout_corr/chi2_seq": -0.006375,
    "rollout_corr/training_ppl": 2.71065,
    "rollout_corr/rollout_ppl": 2.75465,
    "rollout_corr/ppl_ratio": 0.970995,
    "rollout_corr/rollout_is_mean": 1.11963,
    "rollout_corr/rollout_is_eff_sample_size": 0.801104,
    "rollout_corr/rollout_is_ratio_fraction_high": 0.125,
    f"{RATIO}/min": 0.135335,
    f"{RATIO}/mean": 1.11963,
    f"{RATIO}/max": 2.0,
    f"{GAP}/mean": 0.6625,
    f"{GAP}/max": 2.0,
    "tis": 1.42985,
    "tis_clipfrac": 0.125,
    "gen_kl_error": 0.442345,
    "policy_kl_error": 0.699607,
    "token_mult_prob_error": 2.52621,
    "sampling_importance_ratio": 1.11963,
    "val/rho_weight": 1.11963,
    "mismatch_kl/all/mean": 0.442345,
}
"""What the frameworks' own functions give for one batch with no empty row, cap 2 at the token level."""


@pytest.mark.parametrize("key", THEIRS)
def test_mapped_metrics_equal_their_frameworks(key: str) -> None:
    """On one rank and one batch without empty completions, each mapped metric equals its framework's value."""
    rollout, mask = torch.tensor(ROLLOUT), torch.tensor(MASK)
    rule = rs.Correction("token", "truncate", upper=2.0)
    ours = rs.summarize(rollout + torch.tensor(LOG_RATIO), rollout, mask, correction=rule).metrics()
    name = find(key)
    assert name is not None
    assert ours[name.ours] == pytest.approx(THEIRS[key], rel=1e-5, abs=1e-6)


def test_probability_differences_are_in_probability_space() -> None:
    """Verl's rollout_probs_diff and Pearson equal an independent float64 computation."""
    keep = np.array(MASK, bool)
    q, p = np.exp(np.array(ROLLOUT)[keep]), np.exp((np.array(ROLLOUT) + np.array(LOG_RATIO))[keep])
    rollout = torch.tensor(ROLLOUT)
    ours = rs.summarize(rollout + torch.tensor(LOG_RATIO), rollout, torch.tensor(MASK)).metrics()
    expected = {
        "probs_diff_mean": np.abs(p - q).mean(),
        "probs_diff_max": np.abs(p - q).max(),
        "actor_probs_pearson_corr": np.corrcoef(p, q)[0, 1],
    }
    for key, value in expected.items():
        name = find(f"training/rollout_{key}")
        assert name is not None
        assert name.exact
        assert ours[name.ours] == pytest.approx(value, rel=1e-5)


def test_the_table_is_sound() -> None:
    """Mapped names are in the catalogue, others have a reason, no pattern hides a later one or matches ours."""
    known = {metric.key for metric in CATALOGUE}
    for name in NAMES:
        assert not name.ours or name.ours in known, name
        assert name.ours or name.differs, name
        assert name.exact or name.differs, name
        assert find(name.pattern.replace("*", "x")) is name, name
    assert not [key for key in known if key.startswith("ratioscope/") and is_known(key)]
    for key in ("loss", "kl", "entropy", "reward", "actor/ppo_kl", "train/kl"):
        assert not is_known(key)


def test_two_meanings_of_one_name_map_to_neither() -> None:
    """mismatch/rollout_is_mean, after the cut in verl and before it in XTuner, is displayed and maps to nothing."""
    timeline = Timeline()
    timeline.add(1, "train", 0.0, {"mismatch/rollout_is_mean": 1.4, "mismatch/mismatch_kl": 0.01}, {})
    adopt(timeline)
    assert set(timeline.scalars) == {"mismatch/rollout_is_mean", "mismatch/mismatch_kl", "ratioscope/kl/k1"}
    page = report_html(timeline)
    assert "the log does not say whose it is" in page
    assert "No window" not in page


def test_our_own_run_is_unchanged() -> None:
    """In a run of ratioscope, TRL's metrics replace none of ours."""
    timeline = Timeline()
    timeline.add(1, "train", 0.0, {"ratioscope/kl/k1": 0.1, f"{GAP}/mean": 0.2}, {})
    assert adopt(timeline).foreign == {}
    assert APART not in timeline.scalars
