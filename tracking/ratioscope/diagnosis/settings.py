"""Causes that the run config names, before a token is generated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.config.lookup import UNKNOWN
from ratioscope.diagnosis import thresholds
from ratioscope.diagnosis.findings import Sign, Unchecked
from ratioscope.diagnosis.named import penalties, temperatures, truncating
from ratioscope.diagnosis.sampling import slope_of
from ratioscope.diagnosis.truncation import deficit_of

if TYPE_CHECKING:
    from ratioscope.diagnosis.run import Run


def sampling_settings(run: Run) -> Sign | None:
    """Settings under which tokens come from another distribution than the trainer scores."""
    _need_section(run, "sampling")
    if run.setting("engine.vllm_mode") == "not used":
        return None
    cut, scaled = truncating(run), temperatures(run)
    named = [*cut, *penalties(run), *scaled]
    if not named:
        return None
    size = _deficit_size(run) if cut else None
    slope = slope_of(run) if scaled and run.steady_parts else None
    text = f"the config samples with {', '.join(named)}"
    text += "" if size is None else f"; the mean token ratio is {1.0 - size:.4f}, where full support gives 1"
    text += "" if slope is None else f"; the calibration slope is {slope:.3f}, where one temperature gives 1"
    far = scaled and run.steady_parts and run.steady.abs_mean >= thresholds.FAR
    bad = far or (size or 0.0) >= thresholds.MASS_CUT_BAD
    bad = bad or (slope is not None and abs(slope - 1.0) >= thresholds.SLOPE_BAD)
    return Sign("error" if bad else "warning", "high", text)


def _deficit_size(run: Run) -> float | None:
    """Deficit of the mean ratio, where the numbers show one."""
    try:
        deficit = deficit_of(run) if run.steady_parts else None
    except Unchecked:
        return None
    return None if deficit is None else deficit.size


def logprobs_mode(run: Run) -> Sign | None:
    """A logprobs_mode that returns logits, or log-probabilities from before the temperature."""
    _need_section(run, "sampling")
    mode, sampled = run.setting("engine.logprobs_mode"), run.number("sampling.temperature")
    if run.setting("engine.vllm_mode") == "not used":
        return None
    if mode in ("raw_logits", "processed_logits"):
        return Sign("error", "high", f"logprobs_mode is {mode}: the engine returns logits")
    if mode == "processed_logprobs" or sampled is None or sampled == 1.0:
        return None
    slope = slope_of(run) if run.steady_parts else None
    text = f"the temperature is {sampled:g} and logprobs_mode is {mode}"
    if mode == "raw_logprobs":
        return Sign("warning", "high", f"{text}: the engine's log-probabilities are taken before the temperature")
    if slope is not None and abs(slope - 1.0) < 0.02:
        return Sign("info", "medium", f"{text}; the slope of {slope:.3f} shows that both sides are scaled alike")
    return Sign("warning", "low", f"{text}: it is not known whether the engine scales its log-probabilities")


def not_applied(run: Run) -> Sign | None:
    """The ratio is computed, but the loss leaves it out or uses other weights."""
    state = run.whole.summary if run.parts else None
    if state is not None and (differing := state.count("disagreements")):
        text = f"{differing:,} weights that the trainer uses are not those of the rule in the config"
        return Sign("error", "high", text)
    liger, owner = run.setting("loss.use_liger_kernel"), run.setting("loss.computed_by")
    if liger is True:
        text = "the ratio is computed by the trainer; the loss is a fused Liger kernel, and some versions leave it out"
        return Sign("warning", "low", text)
    if owner == UNKNOWN:
        msg = "the config does not say which method computes the loss"
        raise Unchecked(msg)
    if not str(owner).startswith(("GRPOTrainer.", "_GRPOTrainer.")):
        text = f"the loss is computed by {owner}, which is not TRL's own and may leave the ratio out"
        return Sign("warning", "low", text)
    return None


def stale_slices(run: Run) -> Sign | None:
    """Generations and optimizer steps that are no multiples of each other."""
    names = ("gradient_accumulation_steps", "steps_per_generation", "num_iterations")
    accumulation, per_generation, iterations = (run.number(f"batch.{name}") for name in names)
    if accumulation is None or per_generation is None or iterations is None:
        msg = "the config has no batch geometry"
        raise Unchecked(msg)
    reuse = per_generation * iterations
    if not reuse or not accumulation or reuse % accumulation == 0.0 or accumulation % reuse == 0.0:
        return None
    text = (
        f"a generation serves {reuse:g} backward passes and an optimizer step takes {accumulation:g}: some gradients "
        "are of weights that changed since the tokens were scored"
    )
    return Sign("info", "high", text)


def _need_section(run: Run, name: str) -> None:
    """Raises ``Unchecked`` if the run config lacks a section."""
    if not isinstance(run.setting(name), dict):
        msg = f"the config has no section {name}"
        raise Unchecked(msg)
