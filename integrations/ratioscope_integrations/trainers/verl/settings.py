"""Reading of verl's config: the rule of its rollout correction, and the sections of a run config.

verl and OmegaConf are never imported: settings are looked up by name in any kind of config.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratioscope.config.lookup import is_unknown, lookup
from ratioscope.correction.bounds import Correction

if TYPE_CHECKING:
    from ratioscope.correction.rule import Rule

_OPTIONS = (
    "rollout_is",
    "rollout_is_threshold",
    "rollout_is_batch_normalize",
    "rollout_rs",
    "rollout_rs_threshold",
)
"""Options of ``algorithm.rollout_correction`` that make the rule."""

_ROLLOUT = "actor_rollout_ref.rollout"
_SAMPLING = ("temperature", "top_p", "top_k", "repetition_penalty")
_ENGINE = {
    "name": "name",
    "dtype": "dtype",
    "quantization": "quantization",
    "logprobs_mode": "logprobs_mode",
    "prefix_caching": "enable_prefix_caching",
    "tensor_parallel_size": "tensor_model_parallel_size",
    "enforce_eager": "enforce_eager",
}


def mode_of(config: Any) -> str:
    """Names the use that a run makes of its rollout's log-probabilities.

    Args:
        config: as for :func:`correction_from`.

    Returns:
        ``"decoupled"``: old log-probabilities are computed again and compared with the rollout's; ``"bypass"``:
        the rollout's own are used instead; ``"off"``: there is no ``rollout_correction``, and nothing is corrected.
    """
    section = _section(config)
    if section is None:
        return "off"
    return "bypass" if lookup(section, "bypass_mode") is True else "decoupled"


def correction_from(config: Any) -> Rule | None:
    """Makes the rule of ``algorithm.rollout_correction``.

    Args:
        config: the trainer's config, its ``algorithm`` section, or the ``rollout_correction`` itself: a dict, an
            OmegaConf config or a ``RolloutCorrectionConfig``.

    Returns:
        The preset ``verl/rollout_correction`` with the config's options; None if verl applies no rule to the old
        log-probabilities: without the section, with neither ``rollout_is`` nor ``rollout_rs``, and in bypass mode,
        where the actor's loss compares the current policy with the rollout.

    Raises:
        ValueError: if an option has a value that the preset does not know.
        TypeError: if a threshold is neither a number nor a text.
    """
    if mode_of(config) != "decoupled":
        return None
    settings = _options(config)
    options = {name: value for name, value in settings.items() if value is not None}
    if settings.get("rollout_is_threshold", 2.0) is None:  # verl then weighs nothing
        options.pop("rollout_is", None)
    if not {"rollout_is", "rollout_rs"} & options.keys():
        return None
    return Correction.preset("verl/rollout_correction", **options)


def sections(config: Any) -> dict[str, dict[str, Any]]:
    """Returns the sections ``verl``, ``sampling`` and ``engine`` of the run config, JSON-able.

    Args:
        config: the trainer's config.
    """
    rollout = lookup(config, _ROLLOUT)
    temperature = lookup(rollout, "temperature")
    mode = mode_of(config)
    verl = {"mode": mode, "adv_estimator": lookup(config, "algorithm.adv_estimator")} | _options(config)
    if mode == "bypass":
        verl["loss_type"] = lookup(_section(config), "loss_type")
    return {
        "verl": verl,
        "sampling": {name: lookup(rollout, name) for name in _SAMPLING} | {"scoring_temperature": temperature},
        "engine": {name: lookup(rollout, path) for name, path in _ENGINE.items()},
    }


def text_at(config: Any, path: str) -> str | None:
    """Returns a text of the config; None if it is missing or empty."""
    value = lookup(config, path)
    return value if isinstance(value, str) and not is_unknown(value) and value else None


def _section(config: Any) -> Any:
    """Returns the ``rollout_correction``, which may be the config itself; None without one."""
    for path in ("algorithm.rollout_correction", "rollout_correction"):
        if not is_unknown(section := lookup(config, path)):
            return section
    return None if all(is_unknown(lookup(config, name)) for name in ("bypass_mode", *_OPTIONS)) else config


def _options(config: Any) -> dict[str, Any]:
    section = _section(config)
    settings = {} if section is None else {name: lookup(section, name) for name in _OPTIONS}
    return {name: value for name, value in settings.items() if not is_unknown(value)}
