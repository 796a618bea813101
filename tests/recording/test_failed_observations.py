"""Windows whose observations failed inside ratioscope: they are counted, and are evidence of nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

import ratioscope as rs
from ratioscope.diagnosis import Run, diagnose
from ratioscope.recording.observer import RatioSummary
from ratioscope.report.verdict.verdict import verdict
from ratioscope.runs.read import read

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = "ratioscope/counts/tokens"


def observe(recorder: rs.Recorder, *, masked: bool = False) -> None:
    """Adds one batch."""
    logps = -torch.rand(4, 16) - 0.1
    recorder.observe(logps + 0.05 * torch.randn(4, 16), logps, torch.zeros(4, 16) if masked else torch.ones(4, 16))


def fail(recorder: rs.Recorder) -> None:
    """Adds one observation that fails."""
    with pytest.raises(ValueError, match="mask"):
        recorder.observe(torch.zeros(4, 16), torch.zeros(4, 16), torch.ones(2))


def findings(records: list[rs.Record]) -> list[str]:
    """Returns the names of a run's findings."""
    return [finding.name for finding in diagnose(Run.from_records(records)).findings]


def test_failures_alone_stop_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in which every observation fails has no finding, asks for no stop, and its report says that it failed."""

    def broken(*_: object, **__: object) -> None:
        msg = "no memory"
        raise RuntimeError(msg)

    monkeypatch.setattr(RatioSummary, "observe", broken)
    tracker = rs.MemoryTracker()
    with rs.Recorder(output_dir=tmp_path, report_to=[tracker], on_finding="stop") as recorder:
        for step in range(1, 13):
            with pytest.raises(RuntimeError, match="no memory"):
                observe(recorder)
            record = recorder.flush(step=step)
            assert record is not None
            assert record.scalars == {}
            assert record.events == ("observations that failed and are not in this record: 1",)
        assert not recorder.should_stop
    assert tracker.events == []
    assert not [key for row in tracker.rows for key in row.scalars if TOKENS in key]
    timeline = read(tmp_path)
    assert timeline.pooled is not None
    assert timeline.pooled.windows == 0
    text = "\n".join(line.text for line in verdict(timeline))
    assert "No cause could be checked." in text
    assert "Observations failed in 12 windows" in text
    assert "No successful observation in 12 windows: nothing was measured." in text


def test_failures_beside_masked_batches_prove_no_mask(tmp_path: Path) -> None:
    """A window with a failure and a fully masked batch is not counted as a window without a token; others are."""
    records = []
    with rs.Recorder(output_dir=tmp_path) as recorder:
        for step in range(1, 7):
            observe(recorder, masked=True)
            if step <= 3:
                fail(recorder)
            records.append(recorder.flush(step=step))
    whole = [record for record in records if record is not None]
    assert findings(whole[:3]) == []
    assert findings(whole[3:]) == ["everything_masked"]


def test_failures_of_an_older_journal_are_no_evidence() -> None:
    """A stored window of failures alone, to which earlier versions gave counts of 0, is read without statistics."""
    recorder = rs.Recorder()
    records = []
    for step in range(1, 5):
        fail(recorder)
        record = recorder.flush(step=step)
        assert record is not None
        stored = json.loads(json.dumps(record.to_json())) | {"scalars": {TOKENS: 0.0, "ratioscope/counts/rows": 0.0}}
        records.append(rs.Record.from_json(stored))
    assert [record.scalars for record in records] == [{}] * 4
    assert findings(records) == []
    observe(recorder)
    fail(recorder)
    measured = recorder.flush(step=5)
    assert measured is not None
    assert rs.Record.from_json(measured.to_json()).scalars[TOKENS] == 64
