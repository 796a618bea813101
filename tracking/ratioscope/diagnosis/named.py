"""Sampling settings that the run config names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratioscope.diagnosis.run import Run

_TRUNCATES: tuple[tuple[str, Callable[[float], bool]], ...] = (
    ("top_p", lambda value: value < 1.0),
    ("top_k", lambda value: value > 0.0),
    ("min_p", lambda value: value > 0.0),
)
_PENALTIES = (("repetition_penalty", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0))
"""Penalties and the values at which they do nothing."""


def truncating(run: Run) -> list[str]:
    """Settings that truncate the support, as ``name=value``."""
    values = ((name, run.number(f"sampling.{name}"), truncates) for name, truncates in _TRUNCATES)
    return [f"{name}={value:g}" for name, value, truncates in values if value is not None and truncates(value)]


def penalties(run: Run) -> list[str]:
    """Penalties and other settings that reshape the distribution, as ``name=value`` or by name."""
    values = ((name, run.number(f"sampling.{name}"), neutral) for name, neutral in _PENALTIES)
    named = [f"{name}={value:g}" for name, value, neutral in values if value is not None and value != neutral]
    reshaped = run.setting("sampling.reshaped_by")
    more = [str(name) for name in reshaped] if isinstance(reshaped, list | tuple) else []
    known = {text.partition("=")[0] for text in named}
    return named + [text for text in more if text.partition("=")[0] not in known]


def temperatures(run: Run) -> list[str]:
    """Text on temperatures that differ; empty where they are equal or not both known."""
    sampled, scored = run.number("sampling.temperature"), run.number("sampling.scoring_temperature")
    if sampled is None or scored is None or sampled == scored:
        return []
    return [f"temperature={sampled:g} where the trainer scores at {scored:g}"]


def is_raw(run: Run) -> bool:
    """True if the config says that the engine's log-probabilities are taken before a temperature other than 1."""
    sampled = run.number("sampling.temperature")
    return run.setting("engine.logprobs_mode") == "raw_logprobs" and sampled not in (None, 1.0)
