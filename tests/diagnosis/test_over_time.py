"""Causes over time: healthy rises are information, faults are named and dated, in runs of any length."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch

import ratioscope as rs
from ratioscope.diagnosis import Finding, Run, diagnose
from ratioscope.record import Record
from ratioscope.runs.course import MOST_POINTS
from tests.support.rises import told, windows_of

if TYPE_CHECKING:
    from collections.abc import Callable

RISES = {"wrong_weights", "stale_weights", "grows_between_syncs"}
COLOCATED = {"engine": {"vllm_mode": "colocate"}}


def joined(*spreads: float) -> float:
    """Spread of a sum of independent noises."""
    return math.hypot(*spreads)


def never_synced(step: float, noise: float = 0.01, start: int = 0) -> Callable[[int], float]:
    """Spread at each window if weights stop to arrive at one and steps have random directions."""
    return lambda k: joined(noise, step * math.sqrt(max(k - start, 0)))


def above_info(spreads: list[float], seed: int = 0, **options: int) -> list[Finding]:
    """Findings above info of a run with given spreads."""
    found = diagnose(windows_of(spreads, seed=seed, **options)).findings
    return [finding for finding in found if finding.level != "info"]


HEALTHY = {
    "on-policy in the first window, then one step old": [2e-7] + [6e-5] * 11,
    "the same in bfloat16": [0.0155] + [0.052] * 15,
    "four steps old, the pipeline fills": [joined(0.015, 0.06 * math.sqrt(min(k, 4))) for k in range(16)],
    "float32 under other data": [2e-7] * 8 + [7e-7] * 8,
    "bfloat16 under other data": [0.012] * 8 + [0.022] * 8,
    "one step old, warmup over half of the run": [joined(0.005, 0.035 * min(1, k / 12)) for k in range(24)],
    "one step old, warmup until the end": [joined(0.005, 0.08 * k / 30) for k in range(30)],
    "four steps old, warmup over a third": [joined(0.012, 0.11 * min(1, k / 10)) for k in range(30)],
    "one step old, warmup and decay": [joined(0.01, 0.09 * math.sin(math.pi * k / 40)) for k in range(40)],
    "noise hides the start of a warmup": [joined(0.02, 0.065 * min(1, k / 24)) for k in range(60)],
    "entropy rises by 1.8 times": [0.012 * 1.8 ** (k / 40) for k in range(40)],
    "a single window far off": [0.012] * 20 + [2.0] + [0.012] * 3,
    "the last window far off": [0.012] * 20 + [2.0],
    "two windows far off": [0.012] * 20 + [0.6] * 2 + [0.012] * 3,
}


@pytest.mark.parametrize("spreads", HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_rise_is_information(spreads: list[float]) -> None:
    """Pipeline fill, warmup, decay, other data and other entropy raise no finding above info, nor an event."""
    for seed in range(3):
        assert not [finding for finding in above_info(spreads, seed) if finding.name in RISES]
    assert not [event for event in told(windows_of(spreads)) if event.name in RISES and event.level == "error"]


LATE_STOPS = [(30, 9), (60, 18), (60, 42), (60, 54), (60, 57), (200, 140), (200, 197), (2000, 1990)]


@pytest.mark.parametrize(("windows", "stop"), LATE_STOPS)
@pytest.mark.parametrize("noise", [0.012, 3e-7])
def test_weights_that_stop_are_dated(windows: int, stop: int, noise: float) -> None:
    """Weights that stop to arrive at a window, also one of the last, are stale weights since about that step."""
    spread = never_synced(0.02, noise, stop)
    rows = 16 if windows <= 200 else 4
    finding = above_info([spread(k) for k in range(windows)], rows=rows)[0]
    assert finding.name == "stale_weights"
    assert abs(finding.steps[0] - (stop + 2)) <= 2
    assert f"since about step {finding.steps[0]}" in finding.evidence


@pytest.mark.parametrize("windows", [30, 60, 200])
def test_a_restart_with_old_weights_is_a_jump(windows: int) -> None:
    """A jump to the mismatch of many steps is wrong weights from that step on, though it goes on to drift."""
    start = windows * 2 // 3
    spreads = [0.02 if k < start else 0.3 + 0.06 * (k - start) for k in range(windows)]
    (finding, *_) = above_info(spreads)
    assert (finding.name, finding.level, finding.confidence) == ("wrong_weights", "error", "high")
    assert finding.steps == (start + 1, windows)


@pytest.mark.parametrize("noise", [0.01, 1e-6])
def test_weights_that_never_arrive_are_named(noise: float) -> None:
    """Growth since the start in random directions is a warning at 0.05 nats and an error beyond 0.2."""
    for step, level in ((0.016, "warning"), (0.1, "error")):
        spread = never_synced(step, noise)
        (finding, *_) = above_info([spread(k) for k in range(24)])
        assert (finding.name, finding.level, finding.steps) == ("stale_weights", level, (1, 24))


def test_the_evidence_has_candidates_and_a_test() -> None:
    """A warning says what is seen, then which causes do it, and how to tell them apart."""
    spread = never_synced(0.016, 0.01)
    (finding, *_) = above_info([spread(k) for k in range(24)])
    assert finding.evidence.startswith("mean |d| grew")
    for part in ("weights that do not arrive", "a learning rate that rises", "checksum", "learning rate of 0"):
        assert part in finding.evidence


def test_the_config_excludes_a_design_that_is_behind() -> None:
    """A trainer that waits for its generations has no staleness: growth in a line to 0.1 nats is an error then."""
    records = windows_of([joined(0.005, 0.15 * k / 24) for k in range(24)])
    assert [each.level for each in diagnose(records).findings if each.name == "stale_weights"] == ["info"]
    first = diagnose(records, COLOCATED).findings[0]
    assert (first.name, first.level, first.confidence) == ("stale_weights", "error", "high")
    assert "waits for its generations" in first.evidence
    behind = {"engine": {"vllm_mode": "server", "weight_sync": "every 4 steps"}}
    assert diagnose(records, behind).findings[0].level == "info"


def test_a_mismatch_that_falls_back_is_over() -> None:
    """A rise that ended is no finding, and growth that follows it is dated by its own start."""
    over = [0.012] * 20 + [0.2] * 10 + [0.012] * 20
    assert not above_info(over)
    (finding, *_) = above_info([*over, *(never_synced(0.03)(k) for k in range(1, 10))])
    assert (finding.name, finding.steps[0]) == ("stale_weights", 51)


@pytest.mark.parametrize("windows", [30, 100, 700])
def test_growth_between_syncs_is_named_at_any_length(windows: int) -> None:
    """A mismatch that grows and falls back every five windows is named, however many windows are pooled."""
    spreads = [joined(0.01, 0.03 * math.sqrt(k % 5)) for k in range(windows)]
    (finding, *_) = above_info(spreads, rows=8)
    assert finding.name == "grows_between_syncs"
    assert "every 5 windows" in finding.evidence


def test_the_course_of_a_long_run_is_bounded() -> None:
    """A run of many windows keeps a bounded number of points with all tokens, and the newest half window by window."""
    (record,) = windows_of([0.01], rows=2, length=8)
    run = Run.from_records([record] * (3 * MOST_POINTS))
    points = run.course.points
    assert len(points) <= MOST_POINTS
    assert sum(point.tokens for point in points) == 16 * 3 * MOST_POINTS
    assert sum(point.windows for point in points) == 3 * MOST_POINTS
    assert all(point.windows == 1 for point in points[-MOST_POINTS // 2 :])


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        (lambda p, q: (p.roll(1, 1), q), "shifted_alignment"),
        (lambda p, q: (p + 0.4, q), "constant_shift"),
        (lambda p, q: (1.5 * p, q), "constant_shift"),
    ],
)
def test_another_cause_since_a_jump_is_named(
    damage: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]], cause: str
) -> None:
    """A jump whose windows show what weights do not lead to names that cause, and is no certain error."""
    generator = torch.Generator().manual_seed(0)
    records = []
    for step in range(1, 17):
        rollout = -torch.rand(16, 64, generator=generator).pow(4) * 6 - 0.01
        train = rollout + 0.01 * torch.randn(16, 64, generator=generator)
        sides = damage(train, rollout) if step > 10 else (train, rollout)
        summary = rs.summarize(*sides, torch.ones(16, 64))
        records.append(Record(step, "train", 0.0, {"ratioscope/counts/tokens": 1024.0}, summary.to_host()))
    (finding,) = [each for each in diagnose(records).findings if each.name == "wrong_weights"]
    assert (finding.level, finding.confidence, finding.steps) == ("warning", "medium", (11, 16))
    assert f"{cause} shows in the windows since" in finding.evidence
