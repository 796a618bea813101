"""Effective settings of a TRL trainer, its model and its engine.

Every setting is read from the live trainer by name. TRL is never imported, and a setting that is missing, renamed or
unreadable is recorded as unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from ratioscope.config.lookup import UNKNOWN, is_unknown, lookup
from ratioscope.config.redaction import redact
from ratioscope.incidents import log
from ratioscope_integrations.engines.vllm.settings import SAMPLING, engine_settings, sampling_settings, server_settings

_LOSS = (
    "loss_type",
    "importance_sampling_level",
    "off_policy_mask_threshold",
    "beta",
    "delta",
    "scale_rewards",
    "top_entropy_quantile",
    "use_bias_correction_kl",
)
_BATCH = (
    "num_generations",
    "steps_per_generation",
    "num_iterations",
    "gradient_accumulation_steps",
    "per_device_train_batch_size",
    "generation_batch_size",
    "max_completion_length",
    "mask_truncated_completions",
    "logging_steps",
)

_EXPERTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
_ROUTER_REPLAY = ("router_replay", "routing_replay", "use_router_replay", "enable_router_replay", "moe_router_replay")


def trl_sections(trainer: Any, *, server_info: Mapping[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """Returns the settings of a GRPO trainer, its model, its batches and its engine.

    Args:
        trainer: a ``trl.GRPOTrainer`` or an object with its attributes. It is only read, without network calls or
            collectives, so that one rank alone may call this.
        server_info: in server mode, an earlier answer of ``vllm_client.get_server_info()``, if there is one.

    Returns:
        The sections ``loss``, ``sampling``, ``engine``, ``trainer`` and ``batch``, JSON-able and without secrets.
        An unreadable setting is ``"unknown"``.
    """
    engine = _guarded(_engine, trainer, server_info)
    sections = {
        "loss": _guarded(_loss, trainer),
        "sampling": _guarded(_sampling, trainer),
        "engine": engine,
        "trainer": _guarded(_trainer, trainer, lookup(engine, "returns_routed_experts")),
        "batch": _guarded(_batch, trainer),
    }
    return {name: redact(part) if isinstance(part, dict) else {"status": UNKNOWN} for name, part in sections.items()}


def _guarded(read: Callable[..., Any], *arguments: Any) -> Any:
    """Calls ``read`` and returns its result, or ``UNKNOWN`` if it raises."""
    try:
        return read(*arguments)
    except Exception as error:
        log.debug("could not read a setting (%s): %s", read.__name__, error)
        return UNKNOWN


def _first(root: Any, *paths: str) -> Any:
    """Reads the first of several paths that exists."""
    values = (lookup(root, path) for path in paths)
    return next((value for value in values if not is_unknown(value)), UNKNOWN)


def _loss(trainer: Any) -> dict[str, Any]:
    """Returns the loss's settings and the owner of ``_compute_loss``: a subclass's may leave the ratio out."""
    settings = {name: _first(trainer, name, f"args.{name}") for name in _LOSS}
    flags = [lookup(trainer, path) for path in ("args.use_liger_kernel", "args.use_liger_loss", "use_liger_loss")]
    liger = [flag for flag in flags if not is_unknown(flag)]
    high = _first(trainer, "epsilon_high", "args.epsilon_high")
    low = _first(trainer, "epsilon_low", "args.epsilon")
    return {
        **settings,
        "epsilon": low,
        "epsilon_high": low if high is None else high,
        "use_liger_kernel": True in liger or (liger[0] if liger else UNKNOWN),
        "computed_by": lookup(trainer, "_compute_loss.__qualname__"),
    }


def _sampling(trainer: Any) -> dict[str, Any]:
    """Returns the sampling settings that the engine receives: ``generation_kwargs`` override the trainer's fields."""
    fields = {name: _first(trainer, f"vllm_generation.{name}", name, f"args.{name}") for name in SAMPLING}
    overrides = _first(trainer, "vllm_generation.generation_kwargs", "args.generation_kwargs")
    scoring = _first(trainer, "temperature", "args.temperature")
    if overrides is None or is_unknown(overrides):
        overrides = {}
    if not isinstance(overrides, Mapping):
        unreadable = dict.fromkeys((*SAMPLING, "overridden", "reshaped_by"), UNKNOWN)
        return {**unreadable, "scoring_temperature": scoring}
    effective = sampling_settings({**fields, **overrides})
    if effective["min_p"] is None:
        effective["min_p"] = 0.0
    regex = _first(trainer, "vllm_generation.structured_outputs_regex", "args.vllm_structured_outputs_regex")
    if isinstance(regex, str) and not is_unknown(regex):
        effective["reshaped_by"] = sorted([*effective["reshaped_by"], "structured_outputs_regex"])
    overridden = sorted(name for name in SAMPLING if name in overrides and overrides[name] != fields[name])
    return {**effective, "scoring_temperature": scoring, "overridden": overridden}


def _engine(trainer: Any, server_info: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the engine's settings, from the engine itself or from an earlier answer of a server."""
    mode = _first(trainer, "vllm_mode", "args.vllm_mode")
    if _first(trainer, "use_vllm", "args.use_vllm") is False:
        return {"vllm_mode": "not used"}
    if mode == "server":
        stored = _first(trainer, "vllm_generation.vllm_client.server_info", "vllm_client.server_info")
        settings = server_settings(server_info or stored)
    else:
        llm = _first(trainer, "vllm_generation.llm", "llm")
        settings = engine_settings(None if is_unknown(llm) else llm)
    if mode == "colocate":
        for name, path in (
            ("tensor_parallel_size", "args.vllm_tensor_parallel_size"),
            ("sleep_mode", "args.vllm_enable_sleep_mode"),
        ):
            settings[name] = lookup(trainer, path) if is_unknown(settings[name]) else settings[name]
    return {"vllm_mode": mode, **settings, "weight_sync": _weight_sync(trainer)}


def _weight_sync(trainer: Any) -> str:
    """Returns when the trainer sends its weights to the engine. Arrival is not checked."""
    steps = lookup(trainer, "args.weight_sync_steps")
    if isinstance(steps, int):
        return f"every {steps} steps"
    return UNKNOWN if is_unknown(lookup(trainer, "_last_loaded_step")) else "before a generation at a new step"


def _trainer(trainer: Any, returns_routed_experts: Any) -> dict[str, Any]:
    """Returns settings that the trainer's log-probabilities depend on."""
    model = _unwrapped(lookup(trainer, "model"))
    experts = _guarded(_num_experts, lookup(model, "config"))
    peft_type, peft_rank = _peft(model)
    attention = lookup(model, "config._attn_implementation")
    return {
        "class": f"{type(trainer).__module__}.{type(trainer).__qualname__}",
        "model_class": UNKNOWN if is_unknown(model) else type(model).__name__,
        "weights_dtype": _guarded(_weights_dtype, model),
        "mixed_precision": lookup(trainer, "accelerator.mixed_precision"),
        "train_logps_dtype": UNKNOWN,  # this and the next two are known from the first batch on
        "rollout_logps_dtype": UNKNOWN,
        "ratio_of": UNKNOWN,
        "attention_implementation": UNKNOWN if attention is None else attention,
        "peft_type": peft_type,
        "peft_rank": peft_rank,
        "num_experts": experts,
        "router_replay": _router_replay(trainer, experts, returns_routed_experts),
        "gradient_checkpointing": lookup(trainer, "args.gradient_checkpointing"),
    }


def _unwrapped(model: Any) -> Any:
    """Returns the model inside the wrappers of data parallelism and compilation."""
    for _ in range(8):  # more wrappers than are ever stacked; the bound ends a ring of wrappers
        inner = _first(model, "module", "_orig_mod")
        if is_unknown(inner) or not is_unknown(lookup(model, "config")):
            break
        model = inner
    return model


def _weights_dtype(model: Any) -> str:
    """Returns the dtypes of the weights, the most common first, such as ``"bfloat16+float32"``."""
    counts: Counter[str] = Counter()
    for weight in model.parameters():
        counts[str(weight.dtype).removeprefix("torch.")] += weight.numel()
    return "+".join(name for name, _ in counts.most_common()) or UNKNOWN


def _peft(model: Any) -> tuple[Any, Any]:
    """Returns the active adapter's type and rank; ``"none"`` where the model has no adapter."""
    if model is None or is_unknown(model):
        return UNKNOWN, UNKNOWN
    adapters = lookup(model, "peft_config")
    if not isinstance(adapters, Mapping) or not adapters:
        return "none", "none"
    active = lookup(model, "active_adapter")
    config = adapters[active] if isinstance(active, str) and active in adapters else next(iter(adapters.values()))
    return lookup(config, "peft_type"), lookup(config, "r")


def _num_experts(config: Any) -> Any:
    """Returns the number of experts that each layer routes between: 0 for a dense model."""
    text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
    for name in _EXPERTS:
        count = _first(text_config, name)
        count = count[0] if isinstance(count, list) and count else count
        if isinstance(count, int) and count > 0:
            return count
    described = str(config.to_dict()).lower()
    return UNKNOWN if "expert" in described or "moe" in described else 0


def _router_replay(trainer: Any, experts: Any, returns_routed_experts: Any) -> Any:
    """Returns the setting for reusing the engine's routing; it is off if the engine does not return its routing."""
    if experts == 0:
        return "not applicable"
    setting = _first(trainer, *(f"args.{name}" for name in _ROUTER_REPLAY))
    if is_unknown(setting) and returns_routed_experts is False:
        return "off"
    return setting


def _batch(trainer: Any) -> dict[str, Any]:
    """Returns the settings that divide generations into batches."""
    settings = {name: _first(trainer, f"args.{name}", name) for name in _BATCH}
    return {**settings, "world_size": _first(trainer, "accelerator.num_processes", "args.world_size")}
