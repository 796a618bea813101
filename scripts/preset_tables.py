"""The tables of the presets' reference page: options, one batch through all, numbers by name, and what is refused."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ratioscope import Correction, summarize
from ratioscope.correction.presets import PRESETS, REFUSED, Preset

if TYPE_CHECKING:
    from collections.abc import Iterator

LOG_RATIOS = [[0.0, 0.5, -0.7, -6.0], [1.5, -2.0, 0.1, 0.3], [0.2, -6.0, -6.0, -6.0]]
ROLLOUT = [[-0.5, -1.0, -1.5, -3.0], [-2.5, -0.4, -1.0, -0.9], [-0.8, -3.0, -3.0, -3.0]]
MASK = [[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
ADVANTAGES = [1.0, -1.0, 1.0]


class Number(NamedTuple):
    """A number that a framework logs.

    Attributes:
        framework: name of the framework.
        theirs: its key, or a description.
        ours: the equal keys under ``ratioscope/``; empty if there is none.
        remark: rule under which they are equal, or the reason why we have none.
    """

    framework: str
    theirs: str
    ours: str
    remark: str = ""


_MEANS = "a mean of means over samples or ranks depends on how tokens are dealt to them; ours pool sums and counts"
_PADDED = "it counts padding, whose number says nothing of the run"
_CLAMPED = "a spread of clamped values hides what the clamp cut off"

NUMBERS: tuple[Number, ...] = (
    Number("TRL", "sampling/importance_sampling_ratio/{min,mean,max}", "corrected/{min,mean,max}", "live rows only"),
    Number("TRL", "the same over fully masked rows", "", "a row without a token has no ratio; TRL counts it as 1"),
    Number("TRL", "sampling/sampling_logp_difference/{mean,max}", "log_ratio/abs_mean, token/log_ratio/abs_max"),
    Number("TRL", "any of them over ranks and a logging window", "", _MEANS),
    Number("axolotl", "sampling/importance_sampling_ratio/{min,mean,max}", "corrected/{min,mean,max}"),
    Number("unsloth", "sampling/importance_sampling_ratio/{min,mean}", "", _PADDED),
    Number("unsloth", "sampling/sampling_logp_difference/mean", "", _PADDED),
    Number(
        "verl", "rollout_is_mean, rollout_is_max", "corrected/{mean,max}", "of tokens, under verl/token, verl/sequence"
    ),
    Number(
        "verl", "rollout_is_min of a token rule", "corrected/min", "verl's of a sequence rule is raw: sequence/raw/min"
    ),
    Number("verl", "rollout_is_std", "", _CLAMPED),
    Number("verl", "rollout_is_eff_sample_size", "ess/corrected"),
    Number("verl", "rollout_is_ratio_fraction_high", "modified/high"),
    Number(
        "verl", "rollout_is_ratio_fraction_low", "", "it counts below 1/upper, which a one-sided cap leaves as it is"
    ),
    Number("verl", "rollout_is_oob_ratio", "modified/fraction", "under verl/icepop"),
    Number("verl", "rollout_is_seq_fraction_high", "stage/1/rows_high", "under verl/token"),
    Number(
        "verl", "rollout_is_seq_mean of a sequence rule", "corrected/mean", "under the short form at the sequence level"
    ),
    Number("verl", "rollout_is_seq_mean of a token rule", "", _MEANS),
    Number("verl", "rollout_rs_masked_fraction", "modified/dropped"),
    Number(
        "verl", "rollout_rs_seq_masked_fraction", "stage/1/rows_high, stage/1/rows_low", "a row is one of them at least"
    ),
    Number("verl", "rollout_rs totals over all rows", "", "rows without a token are among them; ours are of live rows"),
    Number("verl", "rollout_rs std", "", _CLAMPED),
    Number("verl, ms-swift, slime, rLLM", "kl", "kl/k1", "q - p: the same sign as ours"),
    Number("verl, ms-swift, slime, prime-rl", "k3_kl, mismatch_kl", "kl/k3"),
    Number("verl, ms-swift, slime", "training_ppl, rollout_ppl, ppl_ratio", "perplexity/{train,rollout,ratio}"),
    Number(
        "verl, ms-swift, slime", "log_ppl_diff", "", "a mean of rows' k1; ours are of tokens (kl/k1) and as ppl_ratio"
    ),
    Number("verl, slime, rLLM", "chi2_token, chi2_seq", "chi2/{token,sequence}"),
    Number("ms-swift", "chi2_seq", "", "of the geometric mean; ours is of the product"),
    Number("ms-swift", "ess", "", "zeros are lifted to the lower bound, so that masking looks like truncation"),
    Number("ms-swift", "the weights' mean", "corrected/mean"),
    Number("OpenRLHF", "vllm_kl", "kl/k1"),
    Number("slime", "tis", "token/raw/mean", "where its metrics are per token; before the bound"),
    Number("slime", "tis_clipfrac", "modified/fraction", "where its metrics are per token"),
    Number("slime", "the same per sample (its default)", "", _MEANS),
    Number("slime", "mis_tis_weight_before_bound, mis_tis_weight_after_bound", "token/raw/mean, corrected/mean"),
    Number("slime", "is_ratio_min_final, is_ratio_max_final", "", "means of minima and of maxima; ours are extremes"),
    Number("slime", "opsm_clipfrac", "stage/1/modified", "a fraction here, a sum there"),
    Number("NeMo-RL", "token_mult_prob_error", "mult_prob_error"),
    Number("NeMo-RL", "gen_kl_error, policy_kl_error", "kl/k3, kl/reverse_k3"),
    Number(
        "NeMo-RL",
        "js_divergence_error",
        "",
        "a mean of two terms of which one is no divergence on the rollout's samples",
    ),
    Number("NeMo-RL", "sampling_importance_ratio", "corrected/mean"),
    Number("NeMo-RL", "is_oob_ratio", "modified/fraction", "an infinite ratio is out of bounds here, and is not there"),
    Number("SkyRL", "is_ratio_mean, is_ratio_max", "token/raw/{mean,max}", "ours is not clamped to e^20"),
    Number("SkyRL", "is_ratio_min, is_ratio_std", "", _PADDED),
    Number(
        "SkyRL", "tis_token_clip_high_ratio", "stage/N/high", "of all tokens here, of those that its masks leave there"
    ),
    Number("SkyRL", "outlier_seq_masked_ratio", "stage/1/rows_{low,high}", "of live rows here, of all rows there"),
    Number("AReaL", "behave_imp_weight/avg", "corrected/mean", "under a mask the mean of what is kept, as drop has it"),
    Number("AReaL", "filtered_fraction", "modified/fraction"),
    Number("AReaL", "behave_approx_kl", "", "of kept tokens alone and p - q; ours is kl/k1 of all, the other sign"),
    Number("AReaL", "the filter's kl_k3", "kl/reverse_k3", "its kl_div_dual is kl/k3"),
    Number("open-instruct", "val/rho_weight", "corrected/mean"),
    Number("open-instruct", "val/rho_drop_frac", "modified/zeroed"),
    Number("open-instruct", "val/rho_clipfrac", "stage/1/modified", "under open-instruct/clamp"),
    Number("prime-rl", "is_masked of tokens", "modified/fraction", "under prime-rl/dppo"),
    Number("prime-rl", "is_masked, masked_mismatch_kl, unmasked_mismatch_kl", "", _MEANS),
    Number("XTuner", "rollout_is_mean", "token/raw/mean", "raw there, corrected in verl, under one name"),
    Number("XTuner", "rollout_is_std", "", _CLAMPED),
    Number("XTuner", "rollout_is_ess", "", "of weights clamped to the bounds, what is vetoed or masked included"),
    Number("XTuner", "veto fraction", "stage/N/rows_{low,high}", "of the veto's stage"),
    Number("tunix", "the mean of per-call means", "", _MEANS),
)
"""Each with its own, by framework."""


def page() -> str:
    """All tables, each under its heading."""
    sections = {
        "Presets": _table(("preset", "options and defaults", "what it does", "remarks"), _presets()),
        "One batch through all presets": _table(
            ("preset", "options", "modified", "corrected mean", "ESS"),
            (
                [_code(name), _given(PRESETS[name].example), *map(_number, values)]
                for name, values in one_batch().items()
            ),
        ),
        "Their numbers and ours": _table(("framework", "theirs", "ours, under `ratioscope/`", "remarks"), _numbers()),
        "What stages cannot express": _table(
            ("rule", "why not"), ([_code(one.name), _cell(one.reason)] for one in REFUSED)
        ),
    }
    return "\n\n".join(f"## {heading}\n\n{table}" for heading, table in sections.items())


def one_batch() -> dict[str, tuple[float, float, float]]:
    """Modified fraction, corrected mean and effective sample size by preset, NaN where all is dropped."""
    rollout = torch.tensor(ROLLOUT)
    train = rollout + torch.tensor(LOG_RATIOS)
    found = {}
    for name, preset in PRESETS.items():
        rule = Correction.preset(name, **preset.example)
        metrics = summarize(train, rollout, torch.tensor(MASK), correction=rule, advantages=ADVANTAGES).metrics()
        keys = ("modified/fraction", "corrected/mean", "ess/corrected")
        fraction, mean, ess = (metrics.get(f"ratioscope/{key}", math.nan) for key in keys)
        found[name] = (fraction, mean, ess)
    return found


def _presets() -> Iterator[list[str]]:
    for name, preset in PRESETS.items():
        rule = preset.make(preset.example if _differs(preset) else {})
        remarks = _cell(f"{preset.note}. " if preset.note else "") + _code(preset.source)
        yield [_code(name), _options(preset), _cell(rule.words()), remarks]


def _differs(preset: Preset) -> bool:
    """Returns whether a preset does nothing without the options of its example."""
    if inspect.Parameter.empty in preset.options.values():
        return True
    rule = preset.make({})
    return rule.bounds is None and not rule.stages


def _options(preset: Preset) -> str:
    shown = []
    for name, default in preset.options.items():
        shown.append(_code(name if default is inspect.Parameter.empty else f"{name}={default!r}"))
    return ", ".join(shown)


def _numbers() -> Iterator[list[str]]:
    for one in NUMBERS:
        yield [one.framework, _cell(one.theirs), _code(one.ours) if one.ours else "–", _cell(one.remark)]


def _given(options: Any) -> str:
    return ", ".join(_code(f"{name}={value!r}") for name, value in options.items())


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.6g}"


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(text: str) -> str:
    return f"`{text}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")
