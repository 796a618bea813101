"""Noise in multiples of what no engine could avoid, where the run measured it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ratioscope.diagnosis import policy

if TYPE_CHECKING:
    from ratioscope.diagnosis.findings import Sign
    from ratioscope.diagnosis.run import Run

AT_FLOOR = 2.0
"""Mean |d| in multiples of the noise floor up to which no engine could be nearer: two independent computations are 1.4
times as far from each other as each is from the exact result, and chunks are but one of the things that differ."""


def noise(run: Run) -> Sign | None:
    """Spread and nothing else: d is symmetric around 0 and the slope is 1. Information while mean |d| is small.

    Where the run has a noise floor, how many times it mean |d| is.
    """
    sign = policy.noise(run)
    floor = None if sign is None else run.whole.get("noise_floor/abs_mean")
    if sign is None or floor is None:
        return sign
    apart = run.steady.abs_mean
    if not floor:
        text = "the trainer is equal to itself to the bit in other chunks, so its own arithmetic is no part of it"
        return replace(sign, evidence=f"{sign.evidence}; {text}")
    multiple = apart / floor
    times = f"{multiple:.1f}" if multiple < 10.0 else f"{multiple:.0f}"
    text = f"that is {times} times the noise floor, {floor:.2g}, by which the trainer differs from itself"
    if multiple <= AT_FLOOR:
        return replace(sign, confidence="high", evidence=f"{sign.evidence}; {text}: no engine could be nearer")
    return replace(sign, evidence=f"{sign.evidence}; {text}: the rest is of the engine, its precision or its kernels")
