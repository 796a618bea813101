"""Copies of a trainer with the callback, and another training after an interrupted one."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest

import ratioscope as rs
from ratioscope_integrations.trainers.trl.attachment import wrap
from ratioscope_integrations.trainers.trl.callback import RatioscopeCallback
from tests.support.fake_engine import length_reward, make_trainer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.trl


def recorded(folder: Path) -> list[rs.Record]:
    """Returns every record of the journal, also superseded ones."""
    with rs.JournalReader(folder) as reader:
        return list(reader.records(superseded=True))


@pytest.mark.parametrize("trained", [False, True], ids=["new", "trained"])
def test_a_deep_copy_trains_and_records_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: bool) -> None:
    """A copied trainer trains its own model and records it with its own recorder; the original is as it was."""
    trainer = make_trainer(tmp_path, monkeypatch, max_steps=2)
    callback = RatioscopeCallback(trainer, report_to=[], noise_floor=True, drift=True, relay=True)
    trainer.add_callback(callback)
    if trained:
        trainer.train()
    before = trainer.state.global_step
    twin = copy.deepcopy(trainer)
    twin.train()
    assert (trainer.state.global_step, twin.state.global_step) == (before, 2)
    (own,) = [each for each in twin.callback_handler.callbacks if isinstance(each, RatioscopeCallback)]
    assert own.recorder is not callback.recorder
    assert not own.recorder.incidents.counts
    assert not callback.recorder.is_open
    assert len([record for record in recorded(tmp_path) if record.scalars]) == (4 if trained else 2)
    copy.deepcopy(trainer.callback_handler)
    copy.copy(trainer)


class Plain:
    """A trainer of nothing but methods and a recorder."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.recorder = rs.Recorder(report_to=[rs.MemoryTracker()], config={"seed": 1})
        wrap(self, "train", self._around)

    def train(self) -> int:
        """Counts itself."""
        self.calls.append("train")
        return len(self.calls)

    def _around(self, original: Any) -> Any:
        self.calls.append("around")
        return original()


def test_a_wrapped_method_and_a_recorder_are_pickled() -> None:
    """A pickled object with a wrapped method and a recorder works on itself when it is read."""
    plain = Plain()
    assert plain.train() == 2
    for twin in (pickle.loads(pickle.dumps(plain)), copy.deepcopy(plain)):
        assert twin.train() == 4
        assert twin.calls == ["around", "train"] * 2
        assert not twin.recorder.is_open
        twin.recorder.relay({"loss": 1.0}, step=1)
        twin.recorder.close()
        assert not twin.recorder.incidents.counts
    assert plain.calls == ["around", "train"]


def test_a_training_after_an_interrupt_starts_with_an_empty_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first record of a training after an interrupted one holds its own generations only."""
    counts = []
    for interrupted in (False, True):
        calls = []

        def reward(completions: list[str], interrupted: bool = interrupted, calls: list[int] = calls, **_: Any) -> Any:
            calls.append(1)
            if interrupted and len(calls) == 5:
                raise KeyboardInterrupt
            return length_reward(completions)

        folder = tmp_path / str(interrupted)
        trainer = make_trainer(folder, monkeypatch, logging_steps=3, max_steps=6)
        trainer.reward_funcs = [reward]
        trainer.add_callback(RatioscopeCallback(trainer, report_to=[]))
        if interrupted:
            with pytest.raises(KeyboardInterrupt):
                trainer.train()
            assert [record.step for record in recorded(folder)] == [3]
        trainer.train()
        counts.append([int(record.summary.maxima[-1]) for record in recorded(folder)])
    assert counts == [[3, 3], [3, 3, 3]]
