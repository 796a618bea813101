"""The table of causes, from those that make every other check meaningless to the one left when no other fits."""

from __future__ import annotations

from ratioscope.diagnosis import over_time, positions, sampling, settings, shape, truncation, values
from ratioscope.diagnosis.cause import Cause

_NOISE = ("unexplained", "precision_noise")
_SHAPES = ("temperature", "support_truncation", "constant_shift", "other_experts", "starts_at_a_position", "outliers")
_POSITIONS = ("eos_tokens", "speculative_tail", "mispaired_rows")
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
        "Give the engine's own log-probabilities, not the trainer's: two engines never agree on every token.",
        "verl-project/verl#4070",
    ),
    Cause(
        "logits",
        "rollout values above 0 are not log-probabilities",
        values.logits,
        "Start vLLM with --logprobs-mode processed_logprobs; single absurd values come from corrupted memory.",
        "vllm-project/vllm#42245",
        explains=("zero_filled", "filler_scored", *_POSITIONS, *_SHAPES, *_NOISE),
    ),
    Cause(
        "missing_logprobs",
        "tokens without a log-probability",
        values.missing,
        "NaN or infinite: print both sides of one such token, since either engine's logits may be garbage. Missing: "
        "ask for logprobs of every token, and mask out those that your loop appended. Never fill in 0.",
        "huggingface/trl#6166, NovaSky-AI/SkyRL#570",
    ),
    Cause(
        "not_applied",
        "the correction is computed, and the loss may not use it",
        settings.not_applied,
        "Check that the loss multiplies by importance_sampling_ratio; without the fused kernel, or in the subclass.",
        "linkedin/Liger-Kernel#1082, huggingface/trl#6078",
        from_config=True,
    ),
    Cause(
        "zero_filled",
        "log-probabilities of sampled tokens were filled in with 0",
        values.zero_filled,
        "Leave missing log-probabilities missing (None or NaN): 0 claims a probability of 1.",
        "huggingface/trl#6266, allenai/open-instruct#1041",
        explains=("shifted_alignment", *_POSITIONS, *_TIME, *_SHAPES, *_NOISE),
    ),
    Cause(
        "filler_scored",
        "padding or tool results are scored as if they were sampled",
        values.filler_scored,
        "Mask them out: completion mask and tool mask, both.",
        "huggingface/trl#2810, yaof20/Flash-RL#19",
        explains=("shifted_alignment", *_POSITIONS, *_TIME, *_SHAPES, *_NOISE),
    ),
    Cause(
        "shifted_alignment",
        "log-probabilities belong to the neighbouring token",
        positions.shifted,
        "Slice the trainer's logits one position earlier or later, and compare by token id.",
        "huggingface/trl#3681, vllm-project/vllm#28185",
        explains=(*_POSITIONS, *_TIME, *_SHAPES, *_NOISE),
    ),
    Cause(
        "eos_tokens",
        "the last token of completions is not the engine's",
        positions.last_token,
        "Mask out an end-of-sequence or template token that the harness appended; it was never sampled.",
        "NovaSky-AI/SkyRL#570",
        explains=("mispaired_rows", *_SHAPES, *_NOISE),
    ),
    Cause(
        "speculative_tail",
        "the last few tokens are absurd",
        positions.tail,
        "Leave room below max_model_len for the speculative tokens, or switch speculative decoding off.",
        "vllm-project/vllm#38711",
        explains=("mispaired_rows", *_SHAPES, *_NOISE),
    ),
    Cause(
        "mispaired_rows",
        "some completions are scored under another context",
        positions.mispaired_rows,
        "Check that completions come back in the order of their prompts, on every rank.",
        "huggingface/trl#6673, huggingface/trl#3098",
        explains=(*_SHAPES, *_NOISE),
    ),
    Cause(
        "wrong_weights",
        "the mismatch jumped: the engine may have loaded other weights",
        over_time.wrong_weights,
        "Compare a checksum of one tensor on both sides after a sync; switch sleep mode off to test. If they are "
        "equal, look for what else changed there: data, sampling or engine settings.",
        "huggingface/trl#5312",
        explains=("unexplained",),
    ),
    Cause(
        "stale_weights",
        "the mismatch keeps growing: the engine's weights may not follow the trainer's",
        over_time.stale_weights,
        "Compare a checksum of one tensor on both sides after a sync, and reset the prefix cache after each update. If "
        "they are equal, growth follows the learning rate or the steps between syncs.",
        "PrimeIntellect-ai/prime-rl#1650, modelscope/ms-swift#9855",
        explains=("unexplained",),
    ),
    Cause(
        "grows_between_syncs",
        "the engine's weights are old between syncs",
        over_time.grows_between_syncs,
        "Send the weights more often, or keep fewer steps to a generation; asynchronous training does this by design.",
        "huggingface/trl#6344, PrimeIntellect-ai/prime-rl#1650",
        explains=_NOISE,
    ),
    Cause(
        "support_truncation",
        "tokens were sampled from a part of the support",
        truncation.support_truncation,
        "Set top_p=1, top_k=0, min_p=0, or score the trainer on the same support.",
        "huggingface/trl#6789",
        explains=("other_experts", "constant_shift", *_NOISE),
        confirms=("sampling_settings",),
    ),
    Cause(
        "temperature",
        "one side scales its logits by another temperature",
        sampling.temperature,
        "Use one temperature, and start vLLM with --logprobs-mode processed_logprobs.",
        "huggingface/trl#4159",
        explains=("logprobs_mode", "other_experts", *_NOISE),
        confirms=("sampling_settings", "logprobs_mode"),
    ),
    Cause(
        "constant_shift",
        "one side is not normalised: its values are shifted or scaled",
        sampling.constant_shift,
        "Compare log-softmax with log-softmax, both natural logarithms of single tokens: logits and other logprobs "
        "modes differ by a constant, other bases and divided sums by a factor. Check the order of the arguments.",
        "huggingface/trl#4159",
        explains=("outliers", *_NOISE),
    ),
    Cause(
        "other_experts",
        "the two engines route tokens to different experts",
        shape.other_experts,
        "Replay the engine's routing in the trainer, or cap token ratios; the mean alone misleads.",
        "NVIDIA/Megatron-LM#4168, vllm-project/vllm#28284",
        explains=("outliers", *_NOISE),
    ),
    Cause(
        "starts_at_a_position",
        "the mismatch begins at a position",
        positions.starts_at_a_position,
        "Look at what stands there: padding, tool results, a part of another tokenization. If nothing does, test with "
        "kv_cache_dtype=auto, without quantization and without prefix caching.",
        "vllm-project/vllm#54035",
        explains=("outliers", *_NOISE),
    ),
    Cause(
        "outliers",
        "single tokens are absurd",
        shape.outliers,
        "Look at the worst tokens of the report; an fp32 head and uncorrupted caches remove most.",
        "allenai/open-instruct#1387, vllm-project/vllm#42245",
    ),
    Cause(
        "sampling_settings",
        "settings bias the ratio before any engine drifts",
        settings.sampling_settings,
        "Set top_p=1, top_k=0, min_p=0, repetition_penalty=1 and one temperature; drop other reshaping settings.",
        "huggingface/trl#6880",
        explains=("other_experts", *_NOISE),
        from_config=True,
    ),
    Cause(
        "logprobs_mode",
        "the engine may take log-probabilities from other logits than the trainer",
        settings.logprobs_mode,
        "Start vLLM with --logprobs-mode processed_logprobs.",
        "huggingface/trl#4159",
        from_config=True,
    ),
    Cause(
        "length_collapse",
        "sequence weights vanish with length",
        shape.length_collapse,
        "Remove the cause of the mean d first; else use a token mode, or shorter completions.",
        "huggingface/trl#4772, huggingface/trl#5814",
    ),
    Cause(
        "stale_slices",
        "generations and optimizer steps do not divide each other",
        settings.stale_slices,
        "Make steps_per_generation * num_iterations a multiple of gradient_accumulation_steps, or the reverse.",
        "huggingface/trl#3493",
        from_config=True,
    ),
    Cause(
        "precision_noise",
        "the two engines compute in another order or precision",
        shape.precision_noise,
        "Nothing to do while it is small; the same dtype on both sides and an fp32 head make it smaller.",
        "huggingface/trl#6789, ServiceNow/Fast-LLM#525",
        explains=("unexplained",),
    ),
    Cause(
        "unexplained",
        "the mismatch is large, and no known cause fits",
        shape.unexplained,
        "Compare a handful of tokens by hand: same ids, same weights, same temperature.",
        "derived",
    ),
)
"""Every cause; of two findings of the same level, the earlier cause is listed first."""
