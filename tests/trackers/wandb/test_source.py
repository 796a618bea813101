"""A run read back from W&B through its own client equals the same run read from the journal."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import ratioscope as rs
from ratioscope.runs.read import read
from ratioscope.runs.timeline import Timeline
from ratioscope_integrations.trackers.wandb import source as source
from ratioscope_integrations.trainers.trl.reading import headline
from tests.support.faults import WandbServer, wandb_online
from tests.support.tracker_rows import TOKENS, normal_bins

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

RULE = rs.Correction("token", "truncate", upper=1.2)
STEP = "train/global_step"
ABS = "ratioscope/log_ratio/abs_mean"


@pytest.fixture(scope="module")
def server() -> Iterator[WandbServer]:
    """Stands in for W&B's API."""
    with pytest.MonkeyPatch.context() as patch, wandb_online(patch) as server:
        yield server


def observe(recorder: rs.Recorder, *, split: str = "train") -> None:
    """One batch of 64 tokens."""
    rollout = -torch.rand(4, 16) - 0.1
    recorder.observe(rollout + 0.1 * torch.randn(4, 16), rollout, torch.ones(4, 16), split=split)


def without_empty(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without its empty parts."""
    parts = {name: without_empty(part) if isinstance(part, dict) else part for name, part in config.items()}
    return {name: part for name, part in parts.items() if part != {}}


def same(received: Timeline, kept: Timeline) -> None:
    """Everything but the source, the times, which W&B takes when it is given a row, and empty parts of the config."""
    assert received.scalars.keys() == kept.scalars.keys()
    for key, curve in kept.scalars.items():
        assert received.scalars[key].steps == curve.steps, key
        assert received.scalars[key].values == curve.values, key
        assert received.scalars[key].times == pytest.approx(curve.times, abs=60_000)
    assert received.history.to_json() == kept.history.to_json()
    assert received.config == without_empty(kept.config)
    assert (received.windows, received.events) == (kept.windows, kept.events)


@pytest.mark.trackers
@pytest.mark.parametrize("relayed", [False, True], ids=["own", "relayed"])
def test_ratioscopes_run_equals_its_journal(server: WandbServer, tmp_path: Path, relayed: bool) -> None:
    """Values, histograms, config, events and windows come back bit-equal, evaluations separately."""
    before = set(server.runs)
    torch.manual_seed(1)
    with rs.Recorder(report_to="wandb", correction=RULE, output_dir=tmp_path, close_timeout=60.0) as recorder:
        for step in (2, 4, 6):
            observe(recorder)
            if step == 4:
                with pytest.raises(ValueError, match="shape"):
                    recorder.observe(torch.zeros(1, 2), torch.zeros(1, 1), torch.ones(1, 2))
            record = recorder.merge(step=step)
            assert record is not None
            if relayed:
                recorder.relay({"loss": 0.5, **headline(record)}, step=step, record=record)
            else:
                recorder.write(record)
        observe(recorder, split="eval")
        recorder.flush(step=6, split="eval")
    (run,) = set(server.runs) - before
    received = read(f"wandb:ent/p/{run}")
    same(received, read(tmp_path))
    assert (received.name, received.source) == (run, f"wandb:ent/p/{run}")
    assert received.windows == {"train": 3, "eval": 1}
    assert [step for step, _ in received.events] == [4]


@pytest.mark.trackers
@pytest.mark.trl
def test_the_trainers_run_equals_the_journal(server: WandbServer, tmp_path: Path) -> None:
    """The headline is read from the trainer's keys, also in a run resumed from an earlier step."""
    import wandb
    from transformers.integrations.integration_utils import rewrite_logs

    live = wandb.init(project="p", dir=tmp_path)
    live.define_metric(STEP)
    live.define_metric("*", step_metric=STEP, step_sync=True)
    torch.manual_seed(2)
    for steps, restored in (((2, 4, 6), None), ((4, 6, 8), 2)):
        recorder = rs.Recorder(report_to="wandb", correction=RULE, output_dir=tmp_path)
        recorder.open(reporters={"wandb": object()}, restored_step=restored)
        for step, split in [(step, split) for step in steps for split in ("train", "eval")]:
            observe(recorder, split=split)
            record = recorder.merge(step=step, split=split)
            assert record is not None
            recorder.write(record)
            live.log({**rewrite_logs({"loss": 1.0, **headline(record)}), STEP: step})
        recorder.close()
    live.log({"train/train_runtime": 3.0, STEP: 8})
    live.finish()
    received = read(f"wandb:ent/p/{live.id}")
    same(received, read(tmp_path))
    assert received.scalars[ABS].steps == [2, 4, 6, 8]
    assert len(server.runs[live.id].history) == 13


def timeline(*rows: dict[str, Any]) -> Timeline:
    """Makes a timeline of rows."""
    made = Timeline()
    source._fill(made, rows)
    return made


def test_both_forms_of_a_histogram_are_read() -> None:
    """Bins packed by W&B equal the original ones; other values under the key are ignored."""
    bins = normal_bins(1)
    width = float(bins.edges[1] - bins.edges[0])
    packed = {"min": float(bins.edges[0]), "size": width, "count": len(bins.counts)}
    values: list[Any] = [
        {"_type": "histogram", "values": bins.counts.tolist(), "bins": bins.edges.tolist()},
        {"_type": "histogram", "values": bins.counts.tolist(), "packedBins": packed},
    ]
    for value in values:
        (window,) = timeline({STEP: 3, TOKENS: value}).history.latest(TOKENS).windows
        assert np.array_equal(window.counts, bins.counts)
        assert np.array_equal(timeline({STEP: 3, TOKENS: value}).history.latest(TOKENS).edges, bins.edges)
    for value in (None, "NaN", {}, {"values": []}, {"values": [1, 2], "bins": [0.0, 1.0]}):
        assert timeline({STEP: 3, TOKENS: value}).windows == {}


def test_non_numbers_are_left_out() -> None:
    """Missing, infinite and non-numeric values and rows without a step give no point."""
    made = timeline(
        {STEP: 1, ABS: math.nan, "train/kl": 3.0},
        {STEP: 2, ABS: "Infinity", f"train/{ABS}": None},
        {STEP: 3, f"train/{ABS}": 0.5, "ratioscope/tokens/invalid": math.inf},
        {ABS: 0.7},
    )
    assert {key: curve.values for key, curve in made.scalars.items()} == {ABS: [0.5]}
    assert made.windows == {"train": 1}


@pytest.mark.trackers
def test_unreadable_runs_are_reported(server: WandbServer) -> None:
    """A wrong address, an unknown run and a run without ratioscope each give their own one-line error."""
    import wandb

    for address in ("", "run", "a/b", "a//c", "a/b/c/d"):
        with pytest.raises(ValueError, match=r"expected wandb:ENTITY/PROJECT/RUN"):
            read(f"wandb:{address}")
    with pytest.raises(LookupError, match="W&B has no run ent/p/nonesuch that you may see"):
        read("wandb:ent/p/nonesuch")
    with wandb.init(project="p") as live:
        live.log({"train/loss": 1.0, STEP: 1})
    with pytest.raises(LookupError, match="has no row of ratioscope's"):
        read(f"wandb:ent/p/{live.id}")


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without wandb the message names the extra to install."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r"pip install \"ratioscope\[wandb\]\""):
        source.read("a/b/c")
