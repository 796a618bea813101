"""Every cause, from the one that voids the others to the one that is left when no other fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratioscope.diagnosis import floor, policy, positions, sampling, settings, values
from ratioscope.diagnosis.findings import Cause, Diagnosis, Finding, NotChecked, Unchecked
from ratioscope.diagnosis.run import Run
from ratioscope.event import LEVELS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ratioscope.record import Record

_SHAPES = (
    "temperature",
    "support_truncation",
    "constant_shift",
    "other_experts",
    "starts_at_a_position",
    "outliers",
    "unexplained",
    "precision_noise",
)
_PLACES = ("eos_tokens", "speculative_tail", "mispaired_rows")
_TIME = ("wrong_weights", "stale_weights", "grows_between_syncs")

CAUSES: tuple[Cause, ...] = (
    Cause(
        "everything_masked",
        "no token is left to train on",
        values.nothing_scored,
        "Look at the completion and tool masks, and at mask_truncated_completions with a short max_completion_length.",
        "huggingface/trl#5243, huggingface/trl#4976",
    ),
    Cause(
        "identical",
        "both sides are the same numbers: nothing is measured",
        values.identical,
        "Give the engine's own log-probabilities, not the trainer's: two engines are never equal everywhere.",
        "verl-project/verl#4070",
    ),
    Cause(
        "logits",
        "rollout values above 0 are no log-probabilities",
        values.logits,
        "Start vLLM with --logprobs-mode processed_logprobs; single absurd values come from corrupted memory.",
        "vllm-project/vllm#42245",
        explains=("zero_filled", "filler_scored", *_PLACES, *_SHAPES),
    ),
    Cause(
        "missing_logprobs",
        "tokens without a log-probability",
        values.missing,
        "NaN means that the engine's logits were garbage: look at the engine. Missing ones: ask for logprobs of every "
        "token, and mask out those that your loop appended. Never fill in 0.",
        "huggingface/trl#6166, NovaSky-AI/SkyRL#570",
    ),
    Cause(
        "not_applied",
        "the correction is computed, and the loss may not use it",
        settings.not_applied,
        "Check that the loss multiplies by importance_sampling_ratio; without the fused kernel, or in the subclass.",
        "linkedin/Liger-Kernel#1082, huggingface/trl#6078",
    ),
    Cause(
        "zero_filled",
        "log-probabilities of sampled tokens were filled in with 0",
        values.zero_filled,
        "Leave missing log-probabilities missing (None or NaN): 0 claims a probability of 1.",
        "huggingface/trl#6266, allenai/open-instruct#1041",
        explains=("shifted_alignment", *_PLACES, *_TIME, *_SHAPES),
    ),
    Cause(
        "filler_scored",
        "padding or tool results are scored as if they were sampled",
        values.filler_scored,
        "Mask them out: completion mask and tool mask, both.",
        "huggingface/trl#2810, yaof20/Flash-RL#19",
        explains=("shifted_alignment", *_PLACES, *_TIME, *_SHAPES),
    ),
    Cause(
        "shifted_alignment",
        "log-probabilities belong to the neighbouring token",
        positions.shifted,
        "Slice the trainer's logits one position earlier or later, and compare by token id.",
        "huggingface/trl#3681, vllm-project/vllm#28185",
        explains=(*_PLACES, *_TIME, *_SHAPES),
    ),
    Cause(
        "eos_tokens",
        "the last token of rows is not the engine's",
        positions.last_token,
        "Mask out an end-of-sequence or template token that the harness appended; it was never sampled.",
        "NovaSky-AI/SkyRL#570",
        explains=("starts_at_a_position", "outliers", "mispaired_rows", "other_experts", *_SHAPES),
    ),
    Cause(
        "speculative_tail",
        "the last few tokens are absurd",
        positions.tail,
        "Leave room below max_model_len for the speculative tokens, or switch speculative decoding off.",
        "vllm-project/vllm#38711",
        explains=("starts_at_a_position", "mispaired_rows", *_SHAPES),
    ),
    Cause(
        "mispaired_rows",
        "some rows are of another context",
        positions.mispaired_rows,
        "Check that completions come back in the order of their prompts, on every rank.",
        "huggingface/trl#6673, huggingface/trl#3098",
        explains=_SHAPES,
    ),
    Cause(
        "wrong_weights",
        "the engine loaded other weights at some step",
        policy.wrong_weights,
        "Compare a checksum of the engine's weights with the trainer's after each sync; switch sleep mode off to test.",
        "huggingface/trl#5312",
        explains=("unexplained",),
    ),
    Cause(
        "stale_weights",
        "the engine's weights do not follow the trainer's",
        policy.stale_weights,
        "Check that weights and adapters arrive, and that the prefix cache is reset after each update.",
        "PrimeIntellect-ai/prime-rl#1650, modelscope/ms-swift#9855",
        explains=("unexplained",),
    ),
    Cause(
        "grows_between_syncs",
        "the engine's weights are old between syncs",
        policy.grows_between_syncs,
        "Send the weights more often, or keep fewer steps to a generation; asynchronous training has it by design.",
        "huggingface/trl#6344, PrimeIntellect-ai/prime-rl#1650",
        explains=("unexplained", "precision_noise"),
    ),
    Cause(
        "support_truncation",
        "tokens were sampled from a part of the support",
        sampling.support_truncation,
        "Set top_p=1, top_k=0, min_p=0, or score the trainer on the same support.",
        "huggingface/trl#6789",
        explains=("sampling_settings", "unexplained", "precision_noise", "other_experts", "constant_shift"),
    ),
    Cause(
        "temperature",
        "one side scales its logits by another temperature",
        sampling.temperature,
        "Use one temperature, and start vLLM with --logprobs-mode processed_logprobs.",
        "huggingface/trl#4159",
        explains=("logprobs_mode", "unexplained", "precision_noise", "other_experts"),
    ),
    Cause(
        "constant_shift",
        "one side is not normalised",
        sampling.constant_shift,
        "Compare log-softmax with log-softmax: logits, other logprobs modes and scaled values differ by a constant.",
        "huggingface/trl#4159",
        explains=("unexplained", "precision_noise"),
    ),
    Cause(
        "other_experts",
        "the two engines route tokens to other experts",
        policy.other_experts,
        "Replay the engine's routing in the trainer, or cap token ratios; the mean alone misleads.",
        "NVIDIA/Megatron-LM#4168, vllm-project/vllm#28284",
        explains=("outliers", "unexplained", "precision_noise"),
    ),
    Cause(
        "starts_at_a_position",
        "the mismatch begins at a position",
        positions.starts_at_a_position,
        "Test with kv_cache_dtype=auto, without quantization and without prefix caching.",
        "vllm-project/vllm#54035",
        explains=("outliers", "unexplained", "precision_noise"),
    ),
    Cause(
        "outliers",
        "single tokens are absurd",
        policy.outliers,
        "Look at the worst tokens of the report; an fp32 head and uncorrupted caches remove most.",
        "allenai/open-instruct#1387, vllm-project/vllm#42245",
    ),
    Cause(
        "sampling_settings",
        "settings bias the ratio before any engine drifts",
        settings.sampling_settings,
        "Set top_p=1, top_k=0, min_p=0, repetition_penalty=1 and one temperature; drop other reshaping settings.",
        "huggingface/trl#6880",
    ),
    Cause(
        "logprobs_mode",
        "the engine's log-probabilities may be of other logits than the trainer's",
        settings.logprobs_mode,
        "Start vLLM with --logprobs-mode processed_logprobs.",
        "huggingface/trl#4159",
    ),
    Cause(
        "length_collapse",
        "sequence weights vanish with length",
        policy.length_collapse,
        "Remove the cause of the mean d first; else use a token mode, or shorter completions.",
        "huggingface/trl#4772, huggingface/trl#5814",
    ),
    Cause(
        "stale_slices",
        "generations and optimizer steps do not divide each other",
        settings.stale_slices,
        "Make steps_per_generation * num_iterations a multiple of gradient_accumulation_steps, or the reverse.",
        "huggingface/trl#3493",
    ),
    Cause(
        "precision_noise",
        "the two engines compute in another order or precision",
        floor.noise,
        "Nothing to do while it is small; the same dtype on both sides and an fp32 head make it smaller.",
        "huggingface/trl#6789, ServiceNow/Fast-LLM#525",
        explains=("unexplained",),
    ),
    Cause(
        "unexplained",
        "the engines are far apart, and no known cause fits",
        policy.unexplained,
        "Compare a handful of tokens by hand: same ids, same weights, same temperature.",
        "derived",
    ),
)
"""Every cause; earlier ones outrank later ones of the same level."""

_LAST = ("sampling_settings", "logprobs_mode", "length_collapse", "stale_slices", "precision_noise", "not_applied")
"""What stands beside a cause, or follows from it, and is listed after it."""


def diagnose(records: Iterable[Record] | Run, config: Mapping[str, Any] | None = None) -> Diagnosis:
    """Looks for every cause.

    Args:
        records: of one run, in the order of their steps; evaluations are left out. Or a run that is already read.
        config: the run config; None if unknown.
    """
    run = records if isinstance(records, Run) else Run.from_records(records, config)
    found: dict[str, Finding] = {}
    not_checked: list[NotChecked] = []
    for cause in CAUSES:
        if "identical" in found and cause.check.__module__ != settings.__name__:
            not_checked.append(NotChecked(cause.name, "both sides are the same numbers"))
            continue
        try:
            sign = cause.check(run)
        except Unchecked as why:
            not_checked.append(NotChecked(cause.name, str(why)))
            continue
        if sign is not None:
            steps = sign.steps or run.steps or (0, 0)
            found[cause.name] = Finding(
                cause.name, cause.meaning, sign.level, sign.confidence, sign.evidence, steps, cause.remedy, cause.source
            )
    explained = {name for cause in CAUSES if cause.name in found for name in cause.explains if name != cause.name}
    findings = [finding for name, finding in found.items() if name not in explained]
    findings.sort(key=lambda finding: (finding.level == "info", finding.name in _LAST, -LEVELS.index(finding.level)))
    unclear = {item.name for item in not_checked}
    passed = tuple(cause.name for cause in CAUSES if cause.name not in found and cause.name not in unclear)
    behind = tuple(name for name in found if name in explained)
    return Diagnosis(tuple(findings), tuple(not_checked), passed, behind, run.windows, run.steps, run.foreign)
