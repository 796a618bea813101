"""Inputs from public bug reports, each with the cause that the diagnosis must name: cases C22 to C44.

A test's name has the number of the case; its comment names the report.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ratioscope as rs
from ratioscope.diagnosis import Diagnosis, diagnose
from ratioscope.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

OWN = "ratioscope/"
SEQUENCE_MASK = rs.Correction("sequence", "mask", upper=3.0)


def record(summary: rs.RatioSummary, step: int = 1) -> Record:
    """Record of a training window."""
    return Record(step, "train", 0.0, summary.metrics(), summary.to_host())


def summarized(rows: Sequence[Sequence[float]], rule: rs.Correction | None = None) -> rs.RatioSummary:
    """Summary of tokens with given log-ratios; the engine's log-probabilities vary."""
    d = torch.tensor(rows, dtype=torch.float64)
    rollout = -3.0 - torch.arange(d.numel()).view(d.shape).remainder(7) / 4
    return rs.summarize((rollout + d).float(), rollout.float(), torch.ones_like(d), correction=rule)


def diagnosed(*summaries: rs.RatioSummary, config: dict[str, Any] | None = None) -> Diagnosis:
    """Diagnosis of a run with one window per summary."""
    return diagnose([record(summary, step) for step, summary in enumerate(summaries, 1)], config)


def names(diagnosis: Diagnosis) -> list[str]:
    """Names of the findings above info, in order."""
    return [finding.name for finding in diagnosis.findings if finding.level != "info"]


@pytest.mark.parametrize(("lower", "modified"), [(None, 0.0), (0.5, 1.0)])
def test_c22_kept_mass_is_named_though_nothing_is_modified(lower: float | None, modified: float) -> None:
    """A kept mass of 0.9 makes sequence weights of 2e-14; the config's top_p is named first, and what it does next."""
    # huggingface/trl#6789
    rule = rs.Correction("sequence", "mask", lower=lower, upper=3.0)
    summary = summarized([[math.log(0.9)] * 300] * 4, rule)
    metrics = summary.metrics()
    assert metrics[f"{OWN}modified/fraction"] == modified
    assert metrics[f"{OWN}sequence/raw/p50"] == pytest.approx(1.8739e-14, rel=1e-3)
    assert metrics[f"{OWN}sequence/geometric/mean"] == pytest.approx(0.9)
    found = diagnosed(summary, config={"sampling": {"top_p": 0.8, "top_k": 0, "min_p": 0.0}})
    assert names(found) == ["sampling_settings", "support_truncation", "length_collapse"]
    assert "mean token ratio is 0.9000" in found.findings[0].evidence
    assert "mean token ratio 0.9000" in found.findings[1].evidence
    assert all("top_p=0.8" in finding.evidence for finding in found.findings[:2])
    assert names(diagnosed(summary))[0] == "constant_shift"  # without a config it cannot be distinguished from one


@pytest.mark.parametrize(
    ("sampling", "part"),
    [
        ({"top_p": 0.9, "overridden": ["top_p"]}, "top_p=0.9"),
        ({"repetition_penalty": 1.1}, "repetition_penalty=1.1"),
        ({"temperature": 0.7, "scoring_temperature": 1.0}, "temperature=0.7"),
        ({"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}, None),
        ({"top_p": 1.0, "top_k": -1, "min_p": None, "repetition_penalty": 1}, None),
    ],
)
def test_c23_reshaping_settings_are_named_from_the_config_only(sampling: dict[str, Any], part: str | None) -> None:
    """Truncation, a penalty or another temperature is found before any token; neutral settings are not reported."""
    # huggingface/trl#6880
    found = diagnose([], {"sampling": sampling, "engine": {"logprobs_mode": "processed_logprobs"}})
    assert names(found) == ([] if part is None else ["sampling_settings"])
    assert part is None or part in found.findings[0].evidence


def test_c24_raw_log_probabilities_under_a_temperature() -> None:
    """Ratios of 1.30, 0.48 and 0.18 at logits 2, 1 and 0 with T = 0.5 are a temperature, by slope and config."""
    # huggingface/trl#4159
    logits, t = torch.tensor([2.0, 1.0, 0.0]), 0.5
    train, rollout = (logits / t).log_softmax(0), logits.log_softmax(0)
    assert (train - rollout).exp().tolist() == pytest.approx([1.303007, 0.479349, 0.176343], rel=1e-5)
    tokens = torch.multinomial(train.exp(), 400, replacement=True, generator=torch.Generator().manual_seed(0)).view(
        4, -1
    )
    summary = rs.summarize(train[tokens], rollout[tokens], torch.ones(4, 100))
    config = {"sampling": {"temperature": t, "scoring_temperature": t}, "engine": {"logprobs_mode": "unknown"}}
    found = diagnosed(summary, config=config)
    assert names(found) == ["temperature"]
    assert "slope 2.000" in found.findings[0].evidence
    assert found.findings[0].confidence == "high"
    before = diagnose([], config)
    assert names(before) == ["logprobs_mode"]
    assert "temperature is 0.5 and logprobs_mode is unknown" in before.findings[0].evidence


def test_c25_chunk_noise_is_noise() -> None:
    """8 % of tokens outside 0.9 to 1.1, as often above as below, give an info finding and no alarm."""
    # huggingface/trl#6789
    found = diagnosed(summarized([[0.12] * 4 + [-0.12] * 4 + [0.0] * 92] * 4))
    assert [(finding.name, finding.level) for finding in found.findings] == [("precision_noise", "info")]
    assert "8.0% of ratios" in found.findings[0].evidence


def test_c26_a_sequence_collapse_is_computed_from_logarithms() -> None:
    """A sum of log-ratios of -107 is a collapse in a sequence mode, computed from logs, not from raw ratios."""
    # huggingface/trl#6945
    rule = rs.Correction("sequence", "truncate", lower=0.8)
    summary = summarized([[math.log(0.7)] * 300] * 4, rule)
    assert summary.metrics()[f"{OWN}corrected/mean"] == pytest.approx(0.8)
    found = diagnosed(summary)
    assert names(found) == ["constant_shift", "length_collapse"]
    assert "-107 nats per completion" in found.findings[1].evidence


def test_c27_a_single_absurd_token_is_an_outlier() -> None:
    """One token of a thousand at -20 is reported as an outlier with count and size, not as a drift."""
    # allenai/open-instruct#1387
    rows = [[0.0] * 250 for _ in range(4)]
    rows[1][100] = -20.0
    found = diagnosed(summarized(rows))
    assert names(found) == ["outliers"]
    assert "1 of 1,000 tokens" in found.findings[0].evidence
    assert "largest 20" in found.findings[0].evidence


def test_c29_a_shift_by_one_token_is_named() -> None:
    """Trainer values at t that equal the engine's at t + 1 are named as a lag; mean |d| is 2.36."""
    # huggingface/trl#3681
    rollout, train = torch.tensor([[-0.1, -3.0, -0.2, -2.0]]), torch.tensor([[-3.0, -0.2, -2.0, -0.05]])
    summary = rs.summarize(train, rollout, torch.ones(1, 4))
    assert summary.metrics()[f"{OWN}log_ratio/abs_mean"] == pytest.approx(2.3625)
    found = diagnosed(summary)
    assert names(found) == ["shifted_alignment"]
    assert "the next one" in found.findings[0].evidence


def test_c30_a_token_that_the_harness_appended_is_missing() -> None:
    """A last token without a log-probability is missing, not shifted; filled in with 0 it is a wrong zero."""
    # NovaSky-AI/SkyRL#570
    length, rows = 40, 10
    logps = -0.05 - torch.rand(rows, length, generator=torch.Generator().manual_seed(3)) * 4
    train = logps + 0.001 * torch.randn(rows, length, generator=torch.Generator().manual_seed(4))
    engine = [row[:-1] for row in logps.tolist()]
    summary = rs.summarize(train, engine, torch.ones(rows, length))
    assert summary.metrics()[f"{OWN}counts/missing"] == rows
    assert names(diagnosed(summary)) == ["missing_logprobs"]
    filled = logps.clone()
    filled[:, -1] = 0.0
    assert names(diagnosed(rs.summarize(train, filled, torch.ones(rows, length)))) == ["zero_filled"]


def test_c31_completions_of_another_context_are_distinguished() -> None:
    """Two of four completions at 3 nats are reported as completions, although the mean over all is 1.5."""
    # huggingface/trl#6673
    summary = summarized([[0.01] * 60, [-0.01] * 60, [-3.0] * 60, [-3.0] * 60])
    metrics = summary.metrics()
    assert metrics[f"{OWN}log_ratio/abs_mean"] == pytest.approx(1.505, rel=1e-4)
    assert metrics[f"{OWN}row/abs_mean_max"] == pytest.approx(3.0, rel=1e-4)
    assert metrics[f"{OWN}row/over_1nat"] == 0.5
    found = diagnosed(summary)
    assert names(found)[0] == "mispaired_rows"
    assert "2 of 4 completions" in found.findings[0].evidence


def test_c32_tool_results_are_no_tokens_of_the_policy() -> None:
    """With the tool mask, d covers the policy's tokens only; without it the fillers are reported."""
    # huggingface/trl#2810
    completion, tool = torch.tensor([[1, 1, 1, 1, 0]]), torch.tensor([[1, 0, 0, 1, 1]])
    train, rollout = torch.tensor([[-1.0, -5.0, -6.0, -1.0, 0.0]]), torch.tensor([[-1.1, 0.0, 0.0, -1.0, 0.0]])
    metrics = rs.summarize(train, rollout, completion * tool).metrics()
    assert metrics[f"{OWN}token/raw/mean"] == pytest.approx(1.052585, rel=1e-5)
    assert metrics[f"{OWN}sequence/raw/mean"] == pytest.approx(1.105171, rel=1e-5)
    assert "filler_scored" not in names(diagnosed(rs.summarize(train, rollout, completion * tool)))
    assert names(diagnosed(rs.summarize(train, rollout, completion)))[0] == "filler_scored"


def test_c33_the_end_of_sequence_counts_where_the_mask_has_it() -> None:
    """A masked-in last token with d 0.3 enters the statistics, and is reported where all completions have it."""
    # huggingface/trl#6800
    d = [[0.0, 0.0, 0.3, 9.0, 9.0]] * 8
    rollout = torch.full((8, 5), -10.0)
    summary = rs.summarize(rollout + torch.tensor(d), rollout, torch.tensor([[1, 1, 1, 0, 0]] * 8))
    metrics = summary.metrics()
    assert metrics[f"{OWN}counts/tokens"] == 24
    assert metrics[f"{OWN}sequence/raw/mean"] == pytest.approx(1.349859, rel=1e-5)
    assert names(diagnosed(summary)) == ["eos_tokens"]


def test_c34_uninitialised_memory_is_distinguished_from_logits() -> None:
    """One value above 0 and one of -8e8 are reported as a few absurd values, not as logits."""
    # vllm-project/vllm#42245
    rollout = torch.full((1, 400), -0.3) - torch.arange(400) / 1000
    train = rollout - 0.001
    rollout[0, 1], rollout[0, 2] = 1.2e30, -7.7e8
    summary = rs.summarize(train, rollout, torch.ones(1, 400))
    metrics = summary.metrics()
    assert metrics[f"{OWN}counts/positive_logp"] == 1
    assert metrics[f"{OWN}counts/overflow"] == 1
    found = diagnosed(summary)
    assert names(found)[0] == "logits"
    assert found.findings[0].level == "warning"
    assert "a few only" in found.findings[0].evidence


def drifting(sizes: Sequence[float], sign: float = 0.0) -> list[rs.RatioSummary]:
    """One window per mean absolute log-ratio; symmetric unless a sign is given."""
    signs = torch.tensor([1.0, -1.0] * 100) if not sign else torch.full((200,), sign)
    return [summarized([(size * signs).tolist()] * 4) for size in sizes]


def test_c35_a_reload_of_the_first_weights_is_a_jump() -> None:
    """0.010, 0.018, 0.201, 0.25 is a jump at the third window, with sleep mode as a hint; 0.010 to 0.018 is not."""
    # huggingface/trl#5312
    config = {"engine": {"sleep_mode": True}}
    found = diagnosed(*drifting([0.010, 0.018, 0.201, 0.25]), config=config)
    assert names(found)[0] == "wrong_weights"
    assert found.findings[0].steps == (3, 4)
    assert "between steps 2 and 3" in found.findings[0].evidence
    assert "sleep_mode" in found.findings[0].evidence
    assert names(diagnosed(*drifting([0.010, 0.018, 0.015, 0.016]), config=config)) == []


def test_weights_that_never_arrive_level_off() -> None:
    """Growth that ends in the first third is stale weights, neither a jump nor absurd tokens."""
    # Measured: 60 steps of GRPO, an engine in bfloat16 that kept its first weights.
    climb = [0.0659, 0.141, 0.224, 0.286, 0.326, 0.383, 0.446, 0.494, 0.475, 0.52, 0.567, 0.565, 0.58, 0.61, 0.653]
    level = [0.711, 0.723, 0.79, 0.755, 0.82, 0.788, 0.83, 0.8, 0.89, 0.846, 0.9, 0.85, 0.91, 0.89, 0.92]
    found = diagnosed(*drifting(climb + sorted(level)[:8] + level * 2))
    assert [finding.name for finding in found.findings if finding.level != "info"] == ["stale_weights"]
    assert names(diagnosed(*drifting([0.066, 0.071, 0.073, *[0.07, 0.075, 0.072] * 10]))) == []


def test_c36_a_stale_prefix_cache_grows_with_every_update() -> None:
    """A mean d of -0.002 k at update k is stale weights; the sequence ratios are 0.67, 0.14 and 0.018."""
    # PrimeIntellect-ai/prime-rl#1650
    windows = drifting([0.002 * k for k in range(1, 11)], sign=-1.0)
    ratios = [windows[k - 1].metrics()[f"{OWN}sequence/raw/mean"] for k in (1, 5, 10)]
    assert ratios == pytest.approx([0.6703, 0.1353, 0.0183], rel=3e-3)
    found = diagnosed(*windows)
    assert names(found)[0] == "stale_weights"
    assert found.findings[0].steps == (1, 10)
    assert "per step" in found.findings[0].evidence


def test_c37_a_version_counter_is_no_proof_of_delivery() -> None:
    """An adapter in server mode that never arrives is stale weights, and the evidence names the adapter."""
    # modelscope/ms-swift#9855
    config = {"trainer": {"peft_type": "LORA", "peft_rank": 16}, "engine": {"vllm_mode": "server"}}
    found = diagnosed(*drifting([0.01 * k for k in range(1, 10)]), config=config)
    assert names(found)[0] == "stale_weights"
    assert "LORA" in found.findings[0].evidence
    assert "no proof" in found.findings[0].evidence


@pytest.mark.parametrize(
    ("experts", "cause"), [(64, "other_experts"), ("unknown", "other_experts"), (0, "unexplained")]
)
def test_c38_other_experts_make_a_second_mode(experts: int | str, cause: str) -> None:
    """6 of 100 tokens at +2 beside a core of 0.03 are two modes, whatever the mean of 1.38; a dense model has none."""
    # NVIDIA/Megatron-LM#4168
    d = torch.tensor([-0.03] * 47 + [0.03] * 47 + [2.0] * 6)
    mixed = d[torch.randperm(100, generator=torch.Generator().manual_seed(1))]
    summary = summarized([mixed.tolist()])
    assert summary.metrics()[f"{OWN}token/raw/mean"] == pytest.approx(1.383766, rel=1e-5)
    config = {"trainer": {"num_experts": experts, "router_replay": "off"}}
    found = diagnosed(summary, config=config)
    assert cause in names(found)
    assert ("other_experts" in names(found)) == (cause == "other_experts")


def test_c39_a_key_value_cache_that_is_off_from_a_position_on() -> None:
    """0 in the first 96 of 128 tokens and 0.1 in the rest begins at a position, and the config's dtype is named."""
    # vllm-project/vllm#54035
    summary = summarized([[0.0] * 96 + [0.1] * 32] * 2, SEQUENCE_MASK)
    assert summary.metrics()[f"{OWN}sequence/raw/max"] == pytest.approx(24.53253, rel=1e-4)
    found = diagnosed(summary, config={"engine": {"kv_cache_dtype": "fp8", "quantization": "none"}})
    assert names(found)[0] == "starts_at_a_position"
    assert "kv_cache_dtype fp8" in found.findings[0].evidence
    assert found.findings[0].confidence == "high"


def test_c40_a_speculative_tail_is_no_drift() -> None:
    """-15 on the last 3 of 512 tokens is a tail of 3 absurd tokens."""
    # vllm-project/vllm#38711
    summary = summarized([[0.0] * 509 + [-15.0] * 3])
    assert summary.metrics()[f"{OWN}token/log_ratio/mean"] == pytest.approx(-0.087891, rel=1e-4)
    found = diagnosed(summary)
    assert names(found) == ["speculative_tail"]
    assert "3 tokens have |d| > 5" in found.findings[0].evidence


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        ({"use_liger_kernel": True, "computed_by": "GRPOTrainer._compute_loss"}, ["not_applied"]),
        ({"use_liger_kernel": False, "computed_by": "GMPOTrainer._compute_loss"}, ["not_applied"]),
        ({"use_liger_kernel": False, "computed_by": "GRPOTrainer._compute_loss"}, []),
    ],
)
def test_c41_c42_a_loss_that_may_leave_the_ratio_out_is_reported(loss: dict[str, Any], found: list[str]) -> None:
    """A fused kernel or a subclass's own loss may leave the ratio out; TRL's own does not."""
    # linkedin/Liger-Kernel#1082, huggingface/trl#6078
    assert names(diagnose([], {"loss": loss})) == found


def test_c41_weights_that_are_not_the_rules_are_an_error() -> None:
    """Trainer weights that differ from the rule's are an error."""
    # linkedin/Liger-Kernel#1082
    train, rollout = torch.full((2, 50), -1.0), torch.full((2, 50), -1.1)
    observation = rs.Observation.of(train, rollout, torch.ones(2, 50))
    rule = rs.Correction("token", "truncate", upper=2.0)
    summary = rs.RatioSummary.observe(observation, correction=rule, applied=torch.full((2, 50), 0.01))
    assert "not_applied" in names(diagnosed(summary))


def test_c42_no_config_is_not_a_clean_one() -> None:
    """Without a config, not_applied is neither passed nor found but not checked."""
    # huggingface/trl#6078
    found = diagnosed(summarized([[0.01, -0.01] * 100]))
    assert "not_applied" in {item.name for item in found.not_checked}
    assert "not_applied" not in found.passed


@pytest.mark.parametrize(("accumulation", "per_generation", "found"), [(3, 2, True), (4, 4, False), (1, 4, False)])
def test_c43_generations_that_do_not_divide_steps(accumulation: int, per_generation: int, found: bool) -> None:
    """Accumulation over 3 batches with generations that serve 2 mixes gradients of older weights; multiples do not."""
    # huggingface/trl#3493
    batch = {
        "gradient_accumulation_steps": accumulation,
        "steps_per_generation": per_generation,
        "num_iterations": 1,
    }
    diagnosis = diagnose([], {"batch": batch})
    assert [finding.name for finding in diagnosis.findings] == (["stale_slices"] if found else [])


def test_c44_steps_without_a_generation_are_no_gaps() -> None:
    """Windows at steps 1 and 5 are two windows; no step between them counts as empty."""
    # huggingface/trl#4086
    one, other = drifting([0.01, 0.01])
    found = diagnose([record(one, 1), record(other, 5)])
    assert (found.windows, found.steps) == (2, (1, 5))
    assert names(found) == []
