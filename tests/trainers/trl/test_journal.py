"""The journal of a TRL training: local truth without a tracker, and one live line over crash and resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from transformers import TrainerCallback

from ratioscope.journal.reader import JournalReader
from ratioscope_integrations.trainers.trl.callback import RatioscopeCallback
from tests.support.fake_engine import make_trainer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.trl

MEAN = "sampling/raw_importance_sampling_ratio/mean"


class Crash(TrainerCallback):
    """Ends a training as a fault in the user's code would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Raises at the step."""
        if state.global_step == self.step:
            raise RuntimeError(self.step)


def logged(trainer: Any) -> list[tuple[int, float]]:
    """Step and mean ratio of each row of the trainer's log."""
    return [(row["step"], row[MEAN]) for row in trainer.state.log_history if MEAN in row]


def test_without_a_tracker_the_journal_has_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With report_to="none" everything is in the journal of the output directory, equal to the trainer's log."""
    trainer = make_trainer(tmp_path, monkeypatch, max_steps=3)
    trainer.add_callback(RatioscopeCallback(trainer))
    trainer.train()
    with JournalReader(tmp_path) as reader:
        records = list(reader.records())
        (attempt,) = reader.attempts()
    assert [(record.step, record.scalars[MEAN]) for record in records] == logged(trainer)
    assert attempt.restored_step == 0
    assert attempt.config["correction"]["mode"] == "token_truncate"


def test_a_crash_and_a_resume_are_one_live_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash at step 37 with a checkpoint at 30, resumed to 45: each step is live once, and nothing is dropped."""
    settings: dict[str, Any] = {"max_steps": 45, "save_strategy": "steps", "save_steps": 30, "save_only_model": False}
    trainer = make_trainer(tmp_path, monkeypatch, **settings)
    trainer.add_callback(RatioscopeCallback(trainer))
    trainer.add_callback(Crash(37))
    with pytest.raises(RuntimeError):
        trainer.train()
    resumed = make_trainer(tmp_path, monkeypatch, **settings)
    resumed.add_callback(RatioscopeCallback(resumed))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-30"))

    with JournalReader(tmp_path) as reader:
        live, everything = list(reader.records()), list(reader.records(superseded=True))
        attempts = reader.attempts()
    assert [record.step for record in live] == list(range(1, 46))
    assert [record.step for record in everything] == [*range(1, 37), *range(31, 46)]
    assert [attempt.restored_step for attempt in attempts] == [0, 30]
    assert [(record.step, record.scalars[MEAN]) for record in live[30:]] == logged(resumed)[30:]


def test_a_start_from_scratch_supersedes_the_last_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job started anew in the same directory needs no flag, and an evaluation after it drops nothing."""
    for steps in (3, 2):
        trainer = make_trainer(tmp_path, monkeypatch, max_steps=steps, eval_rows=8)
        trainer.add_callback(RatioscopeCallback(trainer))
        trainer.train()
    trainer.evaluate()
    with JournalReader(tmp_path) as reader:
        assert [(record.step, record.split) for record in reader.records()] == [(1, "train"), (2, "train"), (2, "eval")]
        assert len(list(reader.records(superseded=True))) == 6
