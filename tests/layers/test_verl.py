"""Recorder in verl's driver, compared with verl itself: batch, rollout correction and ``Tracking``."""

from __future__ import annotations

import importlib.util
import json
import logging
import re
import shutil
import subprocess
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import verl
from omegaconf import OmegaConf
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorStack
from verl import DataProto
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.trainer.ppo.rollout_corr_helper import apply_bypass_mode, compute_rollout_correction_and_add_to_batch
from verl.utils.tracking import Tracking
from verl.workers.utils.padding import response_to_nested

import ratioscope as rs
from ratioscope_integrations.trainers.verl import VerlRecorder, correction_from, mode_of, report_to_of
from tests.support.readback import read_mlflow, read_tensorboard, read_trackio, read_wandb

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratioscope.record import Record

pytestmark = [pytest.mark.slow, pytest.mark.trackers]

OWN, TOKENS, MODIFIED = "ratioscope/", "ratioscope/hist/token_log_ratio", "ratioscope/modified/fraction"
KL = "ratioscope/kl/k1"
OFF_POLICY = {
    "kl": f"{OWN}kl/k1",
    "k3_kl": f"{OWN}kl/k3",
    "training_ppl": f"{OWN}perplexity/train",
    "rollout_ppl": f"{OWN}perplexity/rollout",
    "ppl_ratio": f"{OWN}perplexity/ratio",
    "chi2_token": f"{OWN}chi2/token",
    "chi2_seq": f"{OWN}chi2/sequence",
}
WEIGHTS = {
    "rollout_is_mean": f"{OWN}corrected/mean",
    "rollout_is_eff_sample_size": f"{OWN}ess/corrected",
    "rollout_is_max": f"{OWN}corrected/max",
}
LOG_RATIOS = [[0.0, 0.5, -0.7, -6.0], [1.5, -2.0, 0.1, 0.3], [0.2, -6.0, -6.0, -6.0]]
ROLLOUT = [[-0.5, -1.0, -1.5, -3.0], [-2.5, -0.4, -1.0, -0.9], [-0.8, -3.0, -3.0, -3.0]]
KEPT = [[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]]


def shared_batch() -> DataProto:
    """Makes the batch that every framework's correction was run on; masked-out values are garbage."""
    rollout = torch.tensor(ROLLOUT)
    return DataProto.from_dict(
        tensors={
            "old_log_probs": rollout + torch.tensor(LOG_RATIOS),
            "rollout_log_probs": rollout,
            "response_mask": torch.tensor(KEPT),
            "responses": torch.arange(12).reshape(3, 4),
        },
        non_tensors={"uid": np.array(["a", "a", "a"], dtype=object)},
    )


def trainer_config(**options: Any) -> Any:
    """Loads verl's default PPO config, with options of the rollout correction."""
    config = OmegaConf.load(Path(verl.__file__).parent / "trainer" / "config" / "_generated_ppo_trainer.yaml")
    return OmegaConf.merge(config, {"algorithm": {"rollout_correction": options}, "trainer": {"logger": ["console"]}})


def correct_and_observe(
    batch: DataProto, config: Any, ratios: VerlRecorder, *, with_mask: bool = True
) -> tuple[DataProto, dict[str, float]]:
    """Does the steps of verl's driver between scoring and the update, with the lines of the how-to."""
    mask = batch.batch["response_mask"]
    batch, metrics = compute_rollout_correction_and_add_to_batch(batch, config.algorithm.rollout_correction)
    rewards = torch.zeros(batch.batch["response_mask"].shape)
    rewards[:, 0] = torch.tensor([1.0, -1.0, 0.5])
    batch.batch["advantages"], _ = compute_grpo_outcome_advantage(
        rewards, batch.batch["response_mask"], batch.non_tensor_batch["uid"]
    )
    ratios.observe(batch, mask=mask if with_mask else None)
    return batch, metrics


def recorder(config: Any, folder: Path, **options: Any) -> VerlRecorder:
    """Makes a recorder without trackers."""
    return VerlRecorder(config, Tracking("project", "run", []), output_dir=folder, **options)


def flushed(ratios: VerlRecorder, step: int = 1) -> Record:
    """Returns the record of the window and closes the recorder."""
    record = ratios.flush(step)
    ratios.close()
    assert record is not None
    return record


@pytest.mark.parametrize(
    "options",
    [
        {"rollout_is": "token"},
        {"rollout_is": "token", "rollout_is_threshold": "0.5_2.0"},
        {"rollout_is": "sequence"},
        {"rollout_is": "token", "rollout_is_batch_normalize": True},
        {"rollout_is": "sequence", "rollout_is_threshold": 1.0, "rollout_is_batch_normalize": True},
        {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"},
        {"rollout_rs": "token_k3", "rollout_rs_threshold": 0.2},
        {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.9_1.1"},
        {"rollout_rs": "seq_max_k3", "rollout_rs_threshold": 0.5},
        {"rollout_is": "token", "rollout_rs": "token_k1,seq_mean_k3", "rollout_rs_threshold": "0.5_2.0,0.5"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_numbers_equal_verls(options: dict[str, Any], tmp_path: Path) -> None:
    """Raw statistics equal verl's and numpy's; weights, mask and their statistics equal verl's correction."""
    config = trainer_config(**options)
    ratios = recorder(config, tmp_path)
    batch, metrics = correct_and_observe(shared_batch(), config, ratios)
    record = flushed(ratios)
    scalars = record.scalars
    verls = {key.removeprefix("rollout_corr/"): value for key, value in metrics.items()}

    valid = np.array(KEPT, dtype=bool)
    raw = np.exp(np.array(LOG_RATIOS)[valid])
    assert scalars[f"{OWN}token/raw/mean"] == pytest.approx(raw.mean(), rel=1e-6)
    assert scalars[f"{OWN}token/raw/max"] == pytest.approx(raw.max(), rel=1e-6)
    for theirs, ours in OFF_POLICY.items():
        assert scalars[ours] == pytest.approx(verls[theirs], rel=2e-5, abs=1e-6), theirs
    plain = not options.get("rollout_is_batch_normalize") and "rollout_rs" not in options
    for theirs, ours in WEIGHTS.items() if plain else ():
        assert scalars[ours] == pytest.approx(verls[theirs], rel=1e-5), theirs
    if set(options) == {"rollout_is"} and options["rollout_is"] == "token":
        assert scalars[f"{OWN}corrected/mean"] == pytest.approx(1.11963, rel=1e-5)
        assert scalars[f"{OWN}ess/corrected"] == pytest.approx(0.801104, rel=1e-5)
        assert scalars[f"{OWN}modified/high"] == verls["rollout_is_ratio_fraction_high"] == 0.125

    rule = correction_from(config)
    assert rule is not None
    before = shared_batch().batch
    done = rs.weigh(before["old_log_probs"], before["rollout_log_probs"], before["response_mask"], correction=rule)
    assert torch.equal(done.mask, batch.batch["response_mask"].bool())
    if "rollout_is" in options:
        assert torch.allclose(done.weights[done.mask], batch.batch["rollout_is_weights"][done.mask], rtol=1e-6)
    if "rollout_rs" in options:
        assert scalars[MODIFIED] >= verls["rollout_rs_masked_fraction"] > 0
        assert record.summary.count("dropped/n") == 8 - int(batch.batch["response_mask"].sum())
    assert record.summary.count("disagreements") == 0


def test_weights_of_another_rule_count_as_disagreements(tmp_path: Path) -> None:
    """Weights of another threshold than the config's count as disagreements."""
    ratios = recorder(trainer_config(rollout_is="token"), tmp_path)
    correct_and_observe(shared_batch(), trainer_config(rollout_is="token", rollout_is_threshold=1.1), ratios)
    assert flushed(ratios).summary.count("disagreements") == 5


NAMED = sorted(name for name, made in vars(RolloutCorrectionConfig).items() if isinstance(made, classmethod))


@pytest.mark.parametrize("name", NAMED)
def test_verls_named_configs(name: str) -> None:
    """Each named config of verl gives a rule in decoupled mode, and none in bypass mode or if it only watches."""
    config = getattr(RolloutCorrectionConfig, name)()
    rule = correction_from(config)
    if name == "disabled":
        assert (mode_of(config), rule) == ("decoupled", None)
        return
    assert mode_of(config) == name.partition("_")[0]
    if mode_of(config) == "bypass":
        assert rule is None
        return
    assert rule is not None
    batch, _ = compute_rollout_correction_and_add_to_batch(shared_batch(), config)
    before = shared_batch().batch
    done = rs.weigh(before["old_log_probs"], before["rollout_log_probs"], before["response_mask"], correction=rule)
    assert torch.equal(done.mask, batch.batch["response_mask"].bool())
    if config.rollout_is is not None:
        assert torch.allclose(done.weights[done.mask], batch.batch["rollout_is_weights"][done.mask], rtol=1e-6)


def test_configs_without_a_rule() -> None:
    """There is no rule in verl's default config, without the section, and if the threshold is null."""
    assert correction_from(trainer_config()) is None
    assert mode_of(trainer_config()) == "decoupled"
    assert correction_from({"algorithm": {"rollout_correction": None}}) is None
    assert mode_of({"algorithm": {}}) == "off"
    assert correction_from({"rollout_is": "token", "rollout_is_threshold": None}) is None
    with pytest.raises(ValueError, match="rollout_rs_threshold"):
        correction_from({"rollout_rs": "token_k1"})


def nested(batch: DataProto) -> Any:
    """Converts a batch to nested tensors of unequal rows, as verl's trainer keeps it between steps."""
    lengths = batch.batch["response_mask"].sum(dim=-1)
    rows = torch.nested.as_nested_tensor(
        [row[:n] for row, n in zip(batch.batch["response_mask"], lengths, strict=True)], layout=torch.jagged
    )
    return TensorDict({key: response_to_nested(value, rows) for key, value in batch.batch.items()}, batch_size=3)


@pytest.mark.parametrize("layout", [lambda batch: batch.batch, lambda batch: dict(batch.batch.items()), nested])
def test_every_layout_gives_the_same_record(layout: Callable[[DataProto], Any], tmp_path: Path) -> None:
    """A TensorDict, a dict and nested tensors give the state of the DataProto bit for bit."""
    config = trainer_config(rollout_is="token")
    states = []
    for convert, folder in ((lambda batch: batch, "first"), (layout, "second")):
        ratios = recorder(config, tmp_path / folder)
        batch, _ = compute_rollout_correction_and_add_to_batch(shared_batch(), config.algorithm.rollout_correction)
        batch.batch["advantages"] = torch.tensor([[1.0], [-1.0], [0.5]]).expand(3, 4) * batch.batch["response_mask"]
        ratios.observe(convert(batch))
        states.append(flushed(ratios).summary)
    assert states[0] == states[1]


def test_advantages_must_be_one_per_completion(tmp_path: Path) -> None:
    """GRPO's advantages are used; those of a critic, and of rejected completions, are left out."""
    positive, negative = "positive_advantage/n", "negative_advantage/n"
    config = trainer_config(rollout_is="token")
    ratios = recorder(config, tmp_path)
    batch, _ = correct_and_observe(shared_batch(), config, ratios)
    summary = flushed(ratios).summary
    assert (summary.count(positive), summary.count(negative)) == (4, 4)

    batch.batch["advantages"] = torch.arange(12.0).reshape(3, 4)
    ratios.observe(batch)
    assert flushed(ratios, 2).summary.count(positive) == 0

    rejecting = trainer_config(rollout_rs="seq_max_k3", rollout_rs_threshold=0.5)
    ratios = recorder(rejecting, tmp_path / "rejecting")
    correct_and_observe(shared_batch(), rejecting, ratios)
    summary = flushed(ratios).summary
    assert (summary.count("dropped/n"), summary.count(positive)) == (4, 0)


def test_unobservable_batches_are_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Batches without rollout log-probabilities, in bypass mode or with a mask after the rejection are reported."""
    config = trainer_config(rollout_is="token", rollout_rs="token_k1", rollout_rs_threshold="0.5_2.0")
    batch = shared_batch()
    bypass = trainer_config(bypass_mode=True, rollout_is="token")
    apply_bypass_mode(batch, bypass.algorithm.rollout_correction, bypass.actor_rollout_ref.actor.policy_loss)
    for settings, item in (
        (config, batch),
        (bypass, batch),
        (config, shared_batch().pop(["old_log_probs", "response_mask"])),
        (config, ["no", "batch"]),
    ):
        ratios = recorder(settings, tmp_path)
        for _ in range(2):
            ratios.observe(item)
        assert ratios.flush(1) is None
        assert list(ratios.recorder.incidents.counts.values()) == [2]
        ratios.close()
    messages = [record.getMessage() for record in caplog.records if record.name == "ratioscope"]
    parts = ["as in bypass mode", "runs in bypass mode", "no rollout_log_probs. Is", "expected a DataProto"]
    assert [part in text for part, text in zip(parts, messages, strict=True)] == [True] * 4

    ratios = recorder(config, tmp_path)
    correct_and_observe(shared_batch(), config, ratios, with_mask=False)
    assert ratios.recorder.incidents.counts == {"rejected mask": 1}
    assert flushed(ratios).summary.count("disagreements") == 0


def test_unreadable_rule_keeps_raw_statistics(tmp_path: Path) -> None:
    """With an unknown option there is no correction, and raw statistics are still recorded."""
    ratios = recorder(trainer_config(rollout_is="paragraph"), tmp_path)
    ratios.observe(shared_batch())
    scalars = flushed(ratios).scalars
    assert ratios.recorder.correction is None
    assert scalars[KL] == pytest.approx(0.0125, abs=1e-6)
    assert MODIFIED not in scalars


def test_tracking_of_another_kind_is_refused() -> None:
    """Tracking of another type raises an error at set-up."""
    with pytest.raises(TypeError, match="expected verl's Tracking"):
        report_to_of(object())


def test_runs_of_tracking_are_shared(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each logger of a real Tracking receives its scalars once, in the run that verl opened, at verl's steps."""
    import mlflow
    import wandb

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    for name, value in {
        "MLFLOW_TRACKING_URI": uri,
        "TENSORBOARD_DIR": str(tmp_path / "tensorboard"),
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "VERL_FILE_LOGGER_PATH": str(tmp_path / "log.jsonl"),
        "WANDB_DIR": str(tmp_path),
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    wandb.teardown()
    config = trainer_config(rollout_is="token")
    config.trainer.default_local_dir = str(tmp_path / "checkpoints")
    config.actor_rollout_ref.rollout.top_p = 0.9
    loggers = ["console", "file", "wandb", "mlflow", "tensorboard", "trackio"]
    tracking = Tracking("project", "run", loggers, config={"trainer": {"lr": 1.0}})
    run = mlflow.active_run()
    assert run is not None

    with caplog.at_level(logging.WARNING, logger="ratioscope"):
        ratios = VerlRecorder(config, tracking)
        assert ratios.recorder.tracker_names == ["wandb", "trackio", "mlflow", "tensorboard", "verl"]
        for step in (1, 2, 3):
            correct_and_observe(shared_batch(), config, ratios)
            tracking.log({"actor/loss": 0.5 * step}, step=step)
            record = ratios.flush(step)
            assert record is not None
        ratios.close()
        assert wandb.run is not None
        assert mlflow.active_run() is not None
        tracking.finish()
        wandb.teardown()
    incidents = ratios.recorder.incidents.counts
    assert not incidents, caplog.messages
    assert not torch.distributed.is_initialized()

    expected = pytest.approx(0.0125, abs=1e-6)
    uploaded = read_wandb(tmp_path)
    rows = [row for row in uploaded.history if "actor/loss" in row]
    assert [(row["_step"], row["actor/loss"], row[KL]) for row in rows] == [(n, 0.5 * n, expected) for n in (1, 2, 3)]
    assert rows[0][f"{TOKENS}._type"] == "histogram"
    assert uploaded.config["ratioscope"]["verl"]["mode"] == "decoupled"
    assert uploaded.config["ratioscope"]["sampling"]["top_p"] == 0.9

    stored = read_mlflow(uri, run.info.run_id)
    assert [(point.step, point.value) for point in stored.metrics[KL]] == [(n, expected) for n in (1, 2, 3)]
    assert len(stored.metrics["actor/loss"]) == 3
    assert stored.params["ratioscope.engine.logprobs_mode"] == "processed_logprobs"
    assert "ratioscope/config.json" in stored.artifacts

    board = read_tensorboard(tmp_path / "tensorboard")
    assert board.scalars[KL] == [(n, expected) for n in (1, 2, 3)]
    assert [step for step, _ in board.histograms[TOKENS]] == [1, 2, 3]
    assert len(board.scalars["actor/loss"]) == 3

    (traced,) = read_trackio(tmp_path / "trackio", "project").values()
    assert [(row["step"], row[KL]) for row in traced.rows if KL in row] == [(n, expected) for n in (1, 2, 3)]

    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(line["step"], line["data"][KL]) for line in lines if KL in line["data"]] == [
        (n, expected) for n in (1, 2, 3)
    ]
    assert sum(KL in line for line in capsys.readouterr().out.splitlines()) == 3
    with rs.JournalReader(tmp_path / "checkpoints") as journal:
        assert [kept.step for kept in journal.records()] == [1, 2, 3]


def test_tracking_ends_with_its_owner(tmp_path: Path) -> None:
    """A recorder does not keep its Tracking alive, which ends its loggers when deleted, and continues without it."""
    tracking = Tracking("project", "run", ["console"])
    ratios = VerlRecorder(trainer_config(), tracking, output_dir=tmp_path)
    ratios.observe(shared_batch())
    assert ratios.flush(1) is not None
    reference = weakref.ref(tracking)
    del tracking
    assert reference() is None
    ratios.observe(shared_batch())
    assert flushed(ratios, 2).step == 2
    assert not ratios.recorder.incidents.counts


def patched(tmp_path: Path) -> dict[str, Path]:
    """Applies the how-to's diffs to copies of verl's trainers."""
    page = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "verl.md"
    sources = {}
    for diff in re.findall(r"^```diff\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        name = re.search(r"^--- a/verl/(.*)$", diff, re.MULTILINE)[1]
        target = tmp_path / "verl" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(verl.__file__).parent / name, target)
        subprocess.run(["git", "apply", "-"], input=diff, text=True, check=True, cwd=tmp_path)
        sources[name] = target
    return sources


def test_diffs_of_the_how_to_apply(tmp_path: Path) -> None:
    """Both diffs apply to the files of this version, which still compile."""
    sources = patched(tmp_path)
    assert set(sources) == {"trainer/ppo/v1/trainer_base.py", "trainer/ppo/ray_trainer.py"}
    for name, source in sources.items():
        compile(source.read_text(), name, "exec")
        assert source.read_text().count("atios.") >= 3


def test_patched_default_trainer_records_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The patched loop of verl records each step, with a dict in place of its tensor store."""
    source = patched(tmp_path)["trainer/ppo/v1/trainer_base.py"]
    spec = importlib.util.spec_from_file_location("patched_trainer_base", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    keys = module.KVBatchMeta(keys=["a_0_0", "a_1_0", "a_2_0"], tags=[{}, {}, {}], partition_id="train")
    store: dict[str, Any] = {}

    def put(*, fields: Any, **_: Any) -> Any:
        store.update(fields.items())
        return keys

    def get(*, select_fields: list[str], **_: Any) -> Any:
        return TensorDict({name: store[name] for name in select_fields if name in store}, batch_size=3)

    store_of = SimpleNamespace(kv_batch_put=put, kv_batch_get=get, kv_clear=lambda **_: None)
    monkeypatch.setattr(module, "tq", store_of)

    class Trainer(module.PPOTrainer):  # type: ignore[misc, name-defined]
        """Trainer reduced to the loop and the advantages."""

        def __init__(self, config: Any) -> None:
            self.config, self.global_steps, self.total_training_steps, self.steps_per_epoch = config, 0, 2, 2

        def step(self, metrics: dict[str, float], timing_raw: dict[str, float]) -> Any:
            """Passes one generated batch to the advantages."""
            store.clear()
            store.update(nested(shared_batch()).items())
            store["uid"] = NonTensorStack("a", "a", "a")
            store["rm_scores"] = torch.nested.as_nested_tensor(
                [torch.tensor([1.0, 0.0, 0.0]), torch.zeros(4), torch.ones(1)], layout=torch.jagged
            )
            return self._compute_advantage(keys, metrics)

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

        def on_step_end(self) -> None: ...
        def on_sample_end(self) -> None: ...
        def _reissue_inflight_prompts(self) -> None: ...
        def _start_profiling(self) -> None: ...
        def _stop_profiling(self) -> None: ...
        def _compute_metrics(self, *_: Any, **__: Any) -> None: ...
        def _shutdown_dump_executor(self) -> None: ...
        def _consume_sync_metrics(self) -> dict[str, float]:
            return {}

    config = trainer_config(rollout_is="token", rollout_rs="seq_mean_k1", rollout_rs_threshold="0.5_1.1")
    config.trainer.default_local_dir = str(tmp_path)
    config.trainer.val_before_train, config.trainer.test_freq, config.trainer.save_freq = False, -1, -1
    config.algorithm.adv_estimator = "grpo"
    Trainer(config).fit(None)
    with rs.JournalReader(tmp_path) as journal:
        records = list(journal.records())
    assert [record.step for record in records] == [1, 2]
    for record in records:
        assert record.scalars[KL] == pytest.approx(0.0125, abs=1e-6)
        assert record.scalars["ratioscope/counts/tokens"] == 8
        assert record.summary.count("dropped/n") == 8 - int(store["response_mask"].values().sum())
        assert record.summary.count("disagreements") == record.summary.count("errors") == 0
