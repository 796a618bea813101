"""Causes that the run config names, before a token is generated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.config.lookup import UNKNOWN
from ratioscope.diagnosis.findings import Sign, Unchecked

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratioscope.diagnosis.run import Run

_TRUNCATES: tuple[tuple[str, Callable[[float], bool]], ...] = (
    ("top_p", lambda value: value < 1.0),
    ("top_k", lambda value: value > 0.0),
    ("min_p", lambda value: value > 0.0),
)


def truncating(run: Run) -> list[str]:
    """Settings that truncate the support, as ``name=value``."""
    values = ((name, run.number(f"sampling.{name}"), truncates) for name, truncates in _TRUNCATES)
    return [f"{name}={value:g}" for name, value, truncates in values if value is not None and truncates(value)]


def sampling_settings(run: Run) -> Sign | None:
    """Settings under which tokens come from another distribution than the trainer scores."""
    _need_section(run, "sampling")
    if run.setting("engine.vllm_mode") == "not used":
        return None
    named = truncating(run)
    penalty = run.number("sampling.repetition_penalty")
    if penalty is not None and penalty != 1.0:
        named.append(f"repetition_penalty={penalty:g}")
    reshaped = run.setting("sampling.reshaped_by")
    named += [str(name) for name in reshaped] if isinstance(reshaped, list | tuple) else []
    sampled, scored = run.number("sampling.temperature"), run.number("sampling.scoring_temperature")
    if sampled is not None and scored is not None and sampled != scored:
        named.append(f"temperature={sampled:g} where the trainer scores at {scored:g}")
    if not named:
        return None
    return Sign("warning", "high", f"the config samples with {', '.join(named)}")


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
    slope = run.steady.get("calibration/slope") if run.steady_parts else None
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
