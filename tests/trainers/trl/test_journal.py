"""Journal of a TRL training: without a tracker, and over a crash and a resumption."""

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
    """Callback that raises, like a fault in the user's code."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Raises at the given step."""
        if state.global_step == self.step:
            raise RuntimeError(self.step)


def logged(trainer: Any) -> list[tuple[int, float]]:
    """Returns step and mean ratio of each row of the trainer's log."""
    return [(row["step"], row[MEAN]) for row in trainer.state.log_history if MEAN in row]


def test_journal_has_the_run_without_a_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With report_to="none" the journal in the output directory has every record, equal to the trainer's log."""
    trainer = make_trainer(tmp_path, monkeypatch, max_steps=3)
    trainer.add_callback(RatioscopeCallback(trainer))
    trainer.train()
    with JournalReader(tmp_path) as reader:
        records = list(reader.records())
        (attempt,) = reader.attempts()
    assert [(record.step, record.scalars[MEAN]) for record in records] == logged(trainer)
    assert attempt.restored_step == 0
    assert attempt.config["correction"]["mode"] == "token_truncate"


def test_crash_and_resumption_give_each_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash at step 37, resumed from 30 to 45, each step is live once and no record is deleted."""
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
        live, all_records = list(reader.records()), list(reader.records(superseded=True))
        attempts = reader.attempts()
    assert [record.step for record in live] == list(range(1, 46))
    assert [record.step for record in all_records] == [*range(1, 37), *range(31, 46)]
    assert [attempt.restored_step for attempt in attempts] == [0, 30]
    assert [(record.step, record.scalars[MEAN]) for record in live[30:]] == logged(resumed)[30:]


def test_a_start_from_scratch_supersedes_earlier_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second training in the same directory supersedes the first, and an evaluation supersedes nothing."""
    for steps in (3, 2):
        trainer = make_trainer(tmp_path, monkeypatch, max_steps=steps, eval_rows=8)
        trainer.add_callback(RatioscopeCallback(trainer))
        trainer.train()
    trainer.evaluate()
    with JournalReader(tmp_path) as reader:
        assert [(record.step, record.split) for record in reader.records()] == [(1, "train"), (2, "train"), (2, "eval")]
        assert len(list(reader.records(superseded=True))) == 6
