"""Settings read from a TRL trainer and its engine, and warnings about them."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ratioscope.config.lookup import UNKNOWN
from ratioscope_integrations.engines.vllm import engine_settings, server_settings
from ratioscope_integrations.trainers.trl.settings import trl_sections
from ratioscope_integrations.trainers.trl.warnings import config_warnings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECTIONS = {"loss", "sampling", "engine", "trainer", "batch"}


class Config(SimpleNamespace):
    """Fake of a model's config."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields, like a config of transformers."""
        return dict(vars(self))


class GRPOTrainer(SimpleNamespace):
    """Fake of TRL's trainer."""

    def _compute_loss(self) -> None: ...


class OtherLossTrainer(GRPOTrainer):
    """Subclass with its own loss."""

    def _compute_loss(self) -> None: ...


def make_model(**config: Any) -> torch.nn.Module:
    """Makes a model with bfloat16 weights and a smaller float32 head."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8, dtype=torch.bfloat16), torch.nn.Linear(2, 2))
    model.config = Config(**{"_attn_implementation": "sdpa", **config})  # type: ignore[assignment]
    return model


def make_llm(**changes: Any) -> SimpleNamespace:
    """Makes a fake of a vLLM engine in this process; ``changes`` are settings of its model config."""
    model = {
        "dtype": torch.bfloat16,
        "quantization": None,
        "logprobs_mode": "processed_logprobs",
        "enable_sleep_mode": False,
        "model_impl": "auto",
        "enforce_eager": False,
    }
    config = SimpleNamespace(
        model_config=SimpleNamespace(**{**model, **changes}),
        cache_config=SimpleNamespace(cache_dtype="auto", enable_prefix_caching=True),
        parallel_config=SimpleNamespace(tensor_parallel_size=2),
        speculative_config=None,
        aux_output_config=SimpleNamespace(enable_return_routed_experts=False),
    )
    return SimpleNamespace(llm_engine=SimpleNamespace(vllm_config=config))


def make_args(**changes: Any) -> SimpleNamespace:
    """Makes a fake of a ``GRPOConfig``."""
    fields: dict[str, Any] = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": None,
        "repetition_penalty": 1.0,
        "generation_kwargs": None,
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_tensor_parallel_size": 1,
        "vllm_enable_sleep_mode": True,
        "loss_type": "dapo",
        "importance_sampling_level": "token",
        "off_policy_mask_threshold": None,
        "use_liger_kernel": False,
        "beta": 0.0,
        "epsilon": 0.2,
        "epsilon_high": None,
        "num_generations": 8,
        "steps_per_generation": 4,
        "num_iterations": 1,
        "gradient_accumulation_steps": 4,
        "per_device_train_batch_size": 2,
        "max_completion_length": 256,
        "mask_truncated_completions": False,
        "logging_steps": 10,
        "gradient_checkpointing": True,
    }
    return SimpleNamespace(**{**fields, **changes})


def make_trainer(kind: type[GRPOTrainer] = GRPOTrainer, **changes: Any) -> GRPOTrainer:
    """Makes a fake trainer with an engine in its process."""
    fields: dict[str, Any] = {
        "args": make_args(),
        "model": make_model(),
        "accelerator": SimpleNamespace(num_processes=2, mixed_precision="bf16"),
        "vllm_generation": SimpleNamespace(llm=make_llm()),
        "_last_loaded_step": -1,
    }
    return kind(**{**fields, **changes})


def warnings_for(**args: Any) -> list[str]:
    """Returns the warnings for a trainer with the given settings."""
    return config_warnings(trl_sections(make_trainer(args=make_args(**args))))


def test_sections_hold_the_settings() -> None:
    """Each setting is recorded in its section, as JSON."""
    sections = trl_sections(make_trainer())
    assert sections.keys() == SECTIONS
    json.dumps(sections, allow_nan=False)
    loss, batch = sections["loss"], sections["batch"]
    assert (loss["loss_type"], loss["importance_sampling_level"]) == ("dapo", "token")
    assert (loss["off_policy_mask_threshold"], loss["use_liger_kernel"]) == (None, False)
    assert (loss["epsilon"], loss["epsilon_high"], loss["beta"]) == (0.2, 0.2, 0.0)
    assert (batch["num_generations"], batch["world_size"], batch["logging_steps"]) == (8, 2, 10)
    assert sections["trainer"]["class"] == f"{__name__}.GRPOTrainer"
    assert sections["trainer"]["weights_dtype"] == "bfloat16+float32"
    assert sections["trainer"]["mixed_precision"] == "bf16"
    assert sections["trainer"]["attention_implementation"] == "sdpa"
    assert sections["trainer"]["gradient_checkpointing"] is True


def test_live_trainer_overrides_its_arguments() -> None:
    """The trainer's own value is recorded instead of the argument's."""
    trainer = make_trainer(loss_type="grpo", epsilon_low=0.1, epsilon_high=0.3, temperature=0.9)
    sections = trl_sections(trainer)
    assert sections["loss"]["loss_type"] == "grpo"
    assert (sections["loss"]["epsilon"], sections["loss"]["epsilon_high"]) == (0.1, 0.3)
    assert sections["sampling"]["temperature"] == 0.9


def test_overridden_loss_and_liger_are_recorded() -> None:
    """A subclass's own loss is recorded by name, and Liger under either name of its setting."""
    sections = trl_sections(make_trainer(OtherLossTrainer, args=make_args(use_liger_loss=True)))
    assert sections["loss"]["computed_by"] == "OtherLossTrainer._compute_loss"
    assert sections["loss"]["use_liger_kernel"] is True
    assert trl_sections(make_trainer())["loss"]["computed_by"] == "GRPOTrainer._compute_loss"


def test_generation_kwargs_override_fields() -> None:
    """Effective sampling settings are recorded, with the names of overridden ones."""
    kwargs = {"top_p": 0.9, "temperature": 0.7, "top_k": 0, "seed": 1, "presence_penalty": 0.5, "bad_words": []}
    sampling = trl_sections(make_trainer(args=make_args(generation_kwargs=kwargs)))["sampling"]
    assert (sampling["top_p"], sampling["temperature"], sampling["scoring_temperature"]) == (0.9, 0.7, 1.0)
    assert (sampling["top_k"], sampling["min_p"], sampling["repetition_penalty"]) == (0, 0.0, 1.0)
    assert sampling["overridden"] == ["temperature", "top_p"]
    assert sampling["reshaped_by"] == ["presence_penalty"]


def test_unreadable_generation_kwargs_leave_sampling_unknown() -> None:
    """Unreadable overrides make the effective settings unknown, without a warning."""
    trainer = make_trainer(args=make_args(generation_kwargs='{"top_p": 0.9}'))
    sections = trl_sections(trainer)
    assert sections["sampling"]["top_p"] == UNKNOWN
    assert config_warnings(sections) == []


def test_secrets_in_generation_kwargs_are_not_recorded() -> None:
    """A secret among the trainer's settings is in no section."""
    kwargs = {"api_key": "Zq7vXw2LmN4p", "temperature": "hf_Zq7vXw2LmN4p"}
    args = make_args(generation_kwargs=kwargs, hub_token="Zq7vXw2LmN4p")
    assert "Zq7vXw2LmN4p" not in json.dumps(trl_sections(make_trainer(args=args)))


def test_engine_settings_come_from_the_live_engine() -> None:
    """The engine's own settings are recorded, also if the arguments differ."""
    engine = trl_sections(make_trainer())["engine"]
    assert engine["vllm_mode"] == "colocate"
    assert engine["vllm_version"] not in (None, UNKNOWN, "")
    assert (engine["dtype"], engine["quantization"], engine["kv_cache_dtype"]) == ("bfloat16", "none", "auto")
    assert (engine["logprobs_mode"], engine["prefix_caching"]) == ("processed_logprobs", True)
    assert (engine["tensor_parallel_size"], engine["sleep_mode"]) == (2, False)
    assert engine["speculative_decoding"] == "none"
    assert engine["weight_sync"] == "before a generation at a new step"


def test_low_precision_and_speculation_are_recorded() -> None:
    """Quantization, the cache's dtype and the speculative method are recorded by name."""
    llm = make_llm(quantization="fp8")
    llm.llm_engine.vllm_config.cache_config.cache_dtype = "fp8_e4m3"
    llm.llm_engine.vllm_config.speculative_config = SimpleNamespace(method="mtp", num_speculative_tokens=3)
    settings = engine_settings(llm)
    assert (settings["quantization"], settings["kv_cache_dtype"]) == ("fp8", "fp8_e4m3")
    assert settings["speculative_decoding"] == "mtp, 3 tokens"


@pytest.mark.parametrize("llm", [None, object(), SimpleNamespace(llm_engine=None)])
def test_engine_without_a_config_is_unknown(llm: object) -> None:
    """An engine without a config gives one unknown entry for each setting."""
    settings = engine_settings(llm)
    assert settings.keys() == engine_settings(make_llm()).keys()
    assert {value for name, value in settings.items() if name != "vllm_version"} == {UNKNOWN}


def test_colocate_without_an_engine_uses_the_arguments() -> None:
    """Before the engine exists, only settings that the trainer passes on unchanged come from its arguments."""
    engine = trl_sections(make_trainer(vllm_generation=None))["engine"]
    assert (engine["tensor_parallel_size"], engine["sleep_mode"]) == (1, True)
    assert (engine["logprobs_mode"], engine["dtype"], engine["vllm_version"]) == (UNKNOWN, UNKNOWN, UNKNOWN)


def test_server_settings_come_from_an_earlier_answer() -> None:
    """A server's settings come from an earlier answer and are unknown without one; no request is made."""

    def get_server_info() -> None:
        pytest.fail("a request was made")

    client = SimpleNamespace(get_server_info=get_server_info)
    trainer = make_trainer(
        args=make_args(vllm_mode="server", temperature=0.6), vllm_generation=SimpleNamespace(vllm_client=client)
    )
    engine = trl_sections(trainer)["engine"]
    assert engine["vllm_mode"] == "server"
    assert (engine["logprobs_mode"], engine["tensor_parallel_size"], engine["vllm_version"]) == (UNKNOWN,) * 3
    info = {"model_config": {"logprobs_mode": "raw_logprobs", "dtype": "torch.float16"}, "speculative_config": None}
    engine = trl_sections(trainer, server_info=info)["engine"]
    assert (engine["logprobs_mode"], engine["dtype"], engine["speculative_decoding"]) == (
        "raw_logprobs",
        "float16",
        "none",
    )
    assert engine["kv_cache_dtype"] == UNKNOWN
    assert server_settings(info) == server_settings(json.loads(json.dumps(info)))


def test_a_trainer_without_an_engine_gives_no_warning() -> None:
    """Without vLLM there is no ratio to bias, so there is no warning."""
    sections = trl_sections(make_trainer(args=make_args(use_vllm=False, top_p=0.5, temperature=0.5)))
    assert sections["engine"] == {"vllm_mode": "not used"}
    assert config_warnings(sections) == []


def test_peft_type_and_rank_are_recorded() -> None:
    """An adapter's type and rank are read from the model, and are "none" without an adapter."""
    model = make_model()
    model.peft_config = {  # type: ignore[assignment]
        "other": SimpleNamespace(peft_type="IA3"),
        "default": SimpleNamespace(peft_type="LORA", r=16),
    }
    model.active_adapter = "default"  # type: ignore[assignment]
    trainer = trl_sections(make_trainer(model=model))["trainer"]
    assert (trainer["peft_type"], trainer["peft_rank"]) == ("LORA", 16)
    trainer = trl_sections(make_trainer())["trainer"]
    assert (trainer["peft_type"], trainer["peft_rank"]) == ("none", "none")


@pytest.mark.parametrize(
    ("config", "experts", "replay"),
    [
        ({}, 0, "not applicable"),
        ({"num_experts": 128}, 128, "off"),
        ({"n_routed_experts": 256}, 256, "off"),
        ({"num_local_experts": 8}, 8, "off"),
        ({"model_type": "new_moe", "expert_total": 4}, UNKNOWN, "off"),
    ],
)
def test_experts_and_router_replay_are_recorded(config: dict[str, Any], experts: object, replay: str) -> None:
    """The expert count is read from the config, and replay is off if the engine does not return its routing."""
    trainer = trl_sections(make_trainer(model=make_model(**config)))["trainer"]
    assert (trainer["num_experts"], trainer["router_replay"]) == (experts, replay)


def test_router_replay_is_unknown_without_an_engine() -> None:
    """Replay is unknown without an engine, unless the trainer has a setting for it."""
    model = make_model(num_experts=8)
    without_engine = make_trainer(model=model, vllm_generation=None)
    assert trl_sections(without_engine)["trainer"]["router_replay"] == UNKNOWN
    with_setting = make_trainer(model=model, args=make_args(router_replay=True))
    assert trl_sections(with_setting)["trainer"]["router_replay"] is True


def test_wrapped_models_are_unwrapped() -> None:
    """The model inside wrappers is described."""
    wrapped = SimpleNamespace(module=SimpleNamespace(_orig_mod=make_model(num_experts=8)))
    trainer = trl_sections(make_trainer(model=wrapped))["trainer"]
    assert (trainer["num_experts"], trainer["model_class"]) == (8, "Sequential")
    ring = SimpleNamespace()
    ring.module = ring
    assert trl_sections(make_trainer(model=ring))["trainer"]["num_experts"] == UNKNOWN


class Raising:
    """Object whose attributes all raise."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.mark.parametrize(
    "make", [lambda: None, object, SimpleNamespace, Raising, lambda: SimpleNamespace(args=Raising())]
)
def test_unreadable_trainers_are_unknown(make: Callable[[], object]) -> None:
    """Unreadable settings are unknown, and no error is raised."""
    sections = trl_sections(make())
    assert sections.keys() == SECTIONS
    assert set(sections["batch"].values()) == {UNKNOWN}
    assert sections["loss"]["loss_type"] == UNKNOWN
    assert sections["sampling"]["temperature"] == UNKNOWN
    assert sections["engine"]["vllm_mode"] == UNKNOWN
    assert sections["trainer"]["num_experts"] == UNKNOWN
    assert sections["trainer"]["peft_type"] == UNKNOWN
    assert config_warnings(sections) == []


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ({"generation_kwargs": {"top_p": 0.9}}, "top_p=0.9 (from generation_kwargs)"),
        ({"repetition_penalty": 1.1}, "repetition_penalty=1.1"),
        ({"generation_kwargs": {"temperature": 0.7}}, "temperature=0.7 (from generation_kwargs)"),
        ({"top_p": 0.95}, "top_p=0.95"),
        ({"top_k": 50}, "top_k=50"),
        ({"min_p": 0.05}, "min_p=0.05"),
        ({"generation_kwargs": {"frequency_penalty": 0.2}}, "frequency_penalty"),
        ({"vllm_structured_outputs_regex": "a+"}, "structured_outputs_regex"),
    ],
)
def test_biased_sampling_gives_a_warning(args: dict[str, Any], named: str) -> None:
    """Truncated or reshaped sampling and an overridden temperature give one line that names the setting."""
    lines = warnings_for(**args)
    assert len(lines) == 1
    assert lines[0].startswith(named)
    assert "\n" not in lines[0]


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"top_k": -1},
        {"top_k": None, "min_p": 0.0, "top_p": None},
        {"generation_kwargs": {"top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1, "temperature": 1}},
        {"generation_kwargs": {"seed": 1, "stop": ["x"], "presence_penalty": 0.0}},
        {"top_p": 0.9, "generation_kwargs": {"top_p": 1.0}},
        {"temperature": 0.7},
    ],
)
def test_neutral_sampling_gives_no_warning(args: dict[str, Any]) -> None:
    """Neutral settings, and a temperature that both engines apply, give no warning."""
    assert warnings_for(**args) == []


@pytest.mark.parametrize(("mode", "state"), [("raw_logprobs", "raw"), (None, "unknown")])
def test_temperature_with_unscaled_logprobs_gives_a_warning(mode: str | None, state: str) -> None:
    """A temperature other than 1 gives a warning if the engine's log-probabilities are raw or may be."""
    generation = SimpleNamespace(llm=make_llm(logprobs_mode=mode))
    hot = trl_sections(make_trainer(args=make_args(temperature=0.6), vllm_generation=generation))
    (line,) = config_warnings(hot)
    assert line.startswith(f"T != 1 and logprobs_mode is {state}")
    neutral = trl_sections(make_trainer(vllm_generation=generation))
    assert config_warnings(neutral) == []


def test_logits_instead_of_logprobs_give_a_warning() -> None:
    """An engine that returns logits gives a warning at every temperature."""
    generation = SimpleNamespace(llm=make_llm(logprobs_mode="processed_logits"))
    (line,) = config_warnings(trl_sections(make_trainer(vllm_generation=generation)))
    assert line.startswith("logprobs_mode is processed_logits")


@pytest.mark.parametrize("sections", [{}, {"sampling": {}}, {"sampling": {"top_p": "0.9", "overridden": None}}])
def test_incomplete_sections_give_no_warning(sections: dict[str, Any]) -> None:
    """Sections with missing or malformed entries give no warning and no error."""
    assert config_warnings(sections) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_real_grpo_config_is_read_in_full(tmp_path: Path) -> None:
    """Every setting that sections take from TRL's own config exists there."""
    from trl import GRPOConfig

    args = GRPOConfig(
        output_dir=str(tmp_path),
        report_to="none",
        use_cpu=True,
        bf16=False,
        use_vllm=True,
        temperature=0.8,
        generation_kwargs={"top_p": 0.9, "api_key": "Zq7vXw2LmN4p"},
        hub_token="Zq7vXw2LmN4p",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
    )
    sections = trl_sections(make_trainer(args=args, accelerator=None))
    unknown = [f"{part}.{name}" for part in ("loss", "sampling", "batch") for name in sections[part]]
    assert [path for path in unknown if sections[path.split(".")[0]][path.split(".")[1]] == UNKNOWN] == []
    assert (sections["sampling"]["top_p"], sections["sampling"]["temperature"]) == (0.9, 0.8)
    assert sections["sampling"]["overridden"] == ["top_p"]
    assert sections["batch"]["steps_per_generation"] == 2
    assert "Zq7vXw2LmN4p" not in json.dumps(sections)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_real_model_configs_give_their_experts() -> None:
    """Dense models have 0 experts, and mixtures of experts all of theirs."""
    import transformers

    configs = [
        (transformers.Qwen2Config(), 0),
        (transformers.LlamaConfig(), 0),
        (transformers.Gemma3Config(), 0),
        (transformers.Qwen3MoeConfig(num_experts=16), 16),
        (transformers.MixtralConfig(num_local_experts=4), 4),
        (transformers.DeepseekV3Config(n_routed_experts=32), 32),
    ]
    for config, experts in configs:
        model = make_model()
        model.config = config  # type: ignore[assignment]
        assert trl_sections(make_trainer(model=model))["trainer"]["num_experts"] == experts, type(config).__name__


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_real_vllm_configs_have_every_setting() -> None:
    """Each setting's path exists in the installed vLLM."""
    config = pytest.importorskip("vllm.config")
    paths = {
        "ModelConfig": "dtype quantization logprobs_mode enable_sleep_mode model_impl enforce_eager",
        "CacheConfig": "cache_dtype enable_prefix_caching",
        "ParallelConfig": "tensor_parallel_size",
        "SpeculativeConfig": "method num_speculative_tokens",
        "VllmConfig": "model_config cache_config parallel_config speculative_config aux_output_config",
    }
    for owner, names in paths.items():
        assert set(names.split()) <= {field.name for field in dataclasses.fields(getattr(config, owner))}
