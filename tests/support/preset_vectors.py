"""Test vectors: results of other frameworks on known input, and rows that our definitions refuse.

Weights and decisions of their own unit tests; the batch that all were run on; its edges; and two ranks of unequal size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

Rows = list[list[float]]
OWN = "ratioscope/"
STAGE = f"{OWN}stage/1/"
MODIFIED = f"{OWN}modified/fraction"
MEAN = f"{OWN}corrected/mean"
ESS = f"{OWN}ess/corrected"
HIGHEST = f"{OWN}corrected/max"
ZEROED = f"{OWN}modified/zeroed"


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        preset: the preset that reproduces it; empty for statistics before any rule.
        options: its options.
        values: statistics by full key.
        log_ratios: of each token; the shared batch if there is none.
        mask: of the tokens; all of them if there is none.
        advantages: of the rows.
        weights: after the rule.
        kept: the mask after it.
    """

    preset: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    log_ratios: Rows | None = None
    mask: list[list[int]] | None = None
    advantages: list[float] | None = None
    weights: Rows | None = None
    kept: list[list[int]] | None = None


def logs(*ratios: float) -> list[float]:
    """Logarithms."""
    return [math.log(ratio) for ratio in ratios]


ICEPOP = {"rollout_is_threshold": "0.5_5.0"}
RATIOS = "truncated_importance_sampling_ratio"
RATIOS_MIN = "truncated_importance_sampling_ratio_min"
BAND = {"token_mask_is_threshold_low": 0.5, "token_mask_is_threshold_high": 2.0}
OUTLIER = {"outlier_token_is_threshold_low": 1e-4, "outlier_token_is_threshold_high": 100.0}
GEO, PRODUCT = {"geo_mask_low": 0.9, "geo_mask_high": 1.1}, {"product_mask_low": 0.5, "product_mask_high": 2.0}
SEQUENCE = {"level": "sequence"}
RHO = {"rho_mask_lower_bound": 0.5, "rho_mask_upper_bound": 2.0}
E = math.exp

OWN_TESTS: dict[str, Row] = {
    "verl token_k1": Row(
        "verl/token_k1",
        {"rollout_rs_threshold": "0.5_2.0"},
        {MODIFIED: 0.5, f"{STAGE}rows_high": 0.5},
        [[-1.0] * 5, [0.5] * 5],
        kept=[[0] * 5, [1] * 5],
    ),
    "verl IcePop": Row(
        "verl/icepop", ICEPOP, {MODIFIED: 2 / 3, ESS: 1 / 3}, [logs(0.4, 0.8, 6.0)], weights=[[0.0, 0.8, 0.0]]
    ),
    "verl rows with a high token": Row("verl/token", {}, {f"{STAGE}rows_high": 0.5}, [logs(1.0, 6.0), logs(0.9, 1.1)]),
    "verl IcePop, integration": Row(
        "verl/icepop", ICEPOP, {MODIFIED: 1 / 3}, [[-0.5, 2.5, -0.2]], weights=[[0.60653067, 0.0, 0.81873075]]
    ),
    "SkyRL token cap": Row(
        "skyrl/token", {}, {f"{STAGE}high": 1 / 3}, [[0.5, -0.5, 1.0]], weights=[[1.6487, 0.6065, 2.0]]
    ),
    "SkyRL product": Row("skyrl/sequence", {}, {}, [[0.5, -0.5, 1.0]], weights=[[2.7183] * 3]),
    "SkyRL product, a masked token": Row(
        "skyrl/sequence", {}, {MEAN: 4.4817}, [[0.5, -0.5, 1.0]], mask=[[1, 0, 1]], weights=[[4.4817] * 3]
    ),
    "SkyRL product cap": Row("skyrl/sequence", {}, {f"{STAGE}high": 1.0}, [[1.0] * 3], weights=[[5.0] * 3]),
    "SkyRL geometric kept": Row("skyrl/geometric", GEO, {MODIFIED: 0.0}, [[0.1, -0.1, 0.0]], kept=[[1, 1, 1]]),
    "SkyRL geometric high": Row("skyrl/geometric", GEO, {f"{STAGE}high": 1.0}, [[0.5] * 3], kept=[[0, 0, 0]]),
    "SkyRL product kept": Row("skyrl/product", PRODUCT, {MODIFIED: 0.0}, [[0.2, 0.1, 0.0]], kept=[[1, 1, 1]]),
    "SkyRL product rejected": Row("skyrl/product", PRODUCT, {f"{STAGE}high": 1.0}, [[1.0] * 3], kept=[[0, 0, 0]]),
    "SkyRL outlier": Row(
        "skyrl/outlier",
        OUTLIER,
        {f"{OWN}modified/vetoed": 1.0, f"{STAGE}rows_high": 1.0},
        [[0.0, 0.0, 5.0]],
        kept=[[0] * 3],
    ),
    "SkyRL outlier masked out": Row(
        "skyrl/outlier", OUTLIER, {MODIFIED: 0.0}, [[0.0, 0.0, 5.0]], mask=[[1, 1, 0]], kept=[[1, 1, 0]]
    ),
    "SkyRL outlier below": Row("skyrl/outlier", OUTLIER, {f"{STAGE}low": 1.0}, [[0.0, -10.0]], kept=[[0, 0]]),
    "SkyRL token mask above": Row("skyrl/token_mask", BAND, {MODIFIED: 1 / 3}, [[0.0, 0.0, 2.0]], kept=[[1, 1, 0]]),
    "SkyRL token mask below": Row("skyrl/token_mask", BAND, {MODIFIED: 1 / 3}, [[0.0, 0.0, -2.0]], kept=[[1, 1, 0]]),
    "SkyRL token mask, two rows": Row(
        "skyrl/token_mask", BAND, {MODIFIED: 0.5}, [[0.0, 2.0], [-2.0, 0.0]], kept=[[1, 0], [0, 1]]
    ),
    "SkyRL token mask, on the bounds": Row("skyrl/token_mask", BAND, {MODIFIED: 0.0}, [logs(0.5, 2.0)], kept=[[1, 1]]),
    "SkyRL difference of log-probabilities": Row(
        values={f"{OWN}log_ratio/abs_mean": 0.7, f"{OWN}token/log_ratio/abs_max": 1.5},
        log_ratios=[[0.5, -1.0, 0.0], [0.0, 0.5, -1.5]],
        mask=[[1, 1, 0], [1, 1, 1]],
    ),
    "NeMo token cap": Row("nemo/tis", {RATIOS: 0.8}, {}, [[-0.5, 0.5, -0.2]], weights=[[0.6065, 0.8, 0.8]]),
    "NeMo product cap": Row(
        "nemo/tis",
        {RATIOS: 0.8, "sequence_level_importance_ratios": True},
        {f"{OWN}chi2/sequence": E(-0.4) - 1},
        [[-0.5, 0.5, -0.2]],
        weights=[[0.8] * 3],
    ),
    "NeMo IcePop": Row(
        "nemo/icepop", {RATIOS: 5.0, RATIOS_MIN: 0.5}, {}, [[-0.5, 2.5, -0.2]], weights=[[0.6065, 0.0, 0.8187]]
    ),
    "NeMo out of bounds": Row("nemo/tis", {RATIOS: 2.0}, {MODIFIED: 1 / 3}, [logs(1.0, 3.0, 0.5)]),
    "NeMo one-sided": Row(
        "nemo/tis", {RATIOS: 2.0}, {MODIFIED: 1 / 3}, [logs(0.1, 1.0, 3.0)], weights=[[0.1, 1.0, 2.0]]
    ),
    "NeMo two-sided": Row(
        "nemo/tis", {RATIOS: 2.0, RATIOS_MIN: 0.5}, {MODIFIED: 2 / 3}, [logs(0.1, 1.0, 3.0)], weights=[[0.5, 1.0, 2.0]]
    ),
    "NeMo sequence mask": Row("nemo/seq-mask-tis", {}, {MODIFIED: 0.0}, [[0.0005] * 4], weights=[[1.0005] * 4]),
    "NeMo sequence error": Row(
        "nemo/seq_logprob_error_threshold",
        {"seq_logprob_error_threshold": 1.2},
        {MODIFIED: 2 / 3, f"{STAGE}rows_high": 2 / 3},
        [[size, -size, size, -size, *[0.0] * 5] for size in (0.5, 1.0, 0.1)],
        kept=[[0] * 9, [0] * 9, [1] * 9],
    ),
    "NeMo k3 both ways": Row(
        values={f"{OWN}kl/k3": 9.0, f"{OWN}kl/reverse_k3": 22015.4658}, log_ratios=[[-10.0]], mask=[[1]]
    ),
    "NeMo #3900 raw": Row(values={f"{OWN}token/raw/mean": 4.535918}, log_ratios=[logs(0.606531, 12.182494, 0.818731)]),
    "NeMo #3900 tis": Row("nemo/tis", {RATIOS: 5.0}, {MEAN: 2.141754}, [logs(0.606531, 12.182494, 0.818731)]),
    "NeMo #3900 icepop": Row(
        "nemo/icepop", {RATIOS: 5.0, RATIOS_MIN: 0.5}, {MEAN: 0.475087}, [logs(0.606531, 12.182494, 0.818731)]
    ),
    "AReaL token above": Row("areal/token_mask", {"upper": 2.0}, {}, [[0.0, 1.0, 0.0]], kept=[[1, 0, 1]]),
    "AReaL token below": Row(
        "areal/token_mask", {"upper": 5.0, "lower": 0.5}, {}, [[0.0, -1.0, 0.0]], kept=[[1, 0, 1]]
    ),
    "AReaL row": Row("areal/sequence_mask", {}, {}, [[0.0, 0.5, 1.0]], weights=[[E(0.5)] * 3]),
    "AReaL two rows": Row(
        "areal/sequence_mask",
        {},
        {},
        [[0.0, 0.6, 0.3], [0.0, 0.0, 9.0]],
        mask=[[1, 1, 1], [1, 1, 0]],
        weights=[[E(0.3)] * 3, [1.0] * 3],
    ),
    "AReaL k2 of a row kept": Row(
        "areal/sequence_mask", {"metric": "kl_k2", "upper": 0.5}, {}, [[0.0, 1.0, 0.0]], kept=[[1, 1, 1]]
    ),
    "AReaL k2 of a row dropped": Row(
        "areal/sequence_mask", {"metric": "kl_k2", "upper": 0.5}, {}, [[0.0, 2.0, 0.0]], kept=[[0, 0, 0]]
    ),
    "AReaL k2 of a padded row": Row(
        "areal/sequence_mask",
        {"metric": "kl_k2", "upper": 1.99},
        {},
        [[2.0, 0.0, 0.0]],
        mask=[[1, 0, 0]],
        kept=[[0, 0, 0]],
    ),
    "AReaL clamp": Row("areal/token_clamp", {}, {}, [[2.0]], weights=[[5.0]]),
    "AReaL clamp of a row": Row("areal/sequence_clamp", {"upper": 3.0}, {}, [[0.0, 4.0, 0.0]], weights=[[3.0] * 3]),
    "AReaL clamped fraction": Row("areal/token_clamp", {"upper": 2.0}, {MODIFIED: 1 / 3}, [[0.0, 1.0, 0.0]]),
    "open-instruct mask": Row(
        "open-instruct/mask", RHO, {}, [logs(0.25, 0.5, 1.0, 2.0, 4.0)], weights=[[0.0, 0.5, 1.0, 2.0, 0.0]]
    ),
    "open-instruct rows": Row(
        "open-instruct/sequence",
        RHO,
        {f"{STAGE}high": 1 / 3, f"{STAGE}low": 1 / 3},
        [logs(0.25, 1.0, 4.0), logs(4.0, 4.0, 4.0), logs(0.25, 0.25, 0.25)],
        weights=[[1.0] * 3, [0.0] * 3, [0.0] * 3],
    ),
    "open-instruct total variation": Row(
        "open-instruct/tv",
        {"rho_mask_upper_bound": 2.0},
        {},
        [logs(0.25, 1.0, 4.0), logs(4.0, 4.0, 4.0)],
        advantages=[1.0, 1.0],
        weights=[[0.25, 1.0, 4.0], [0.0] * 3],
    ),
    "TRL off-policy mask": Row(
        "trl/opsm",
        {"off_policy_mask_threshold": 1.0},
        {},
        [[-2.0, -2.0, 1e4], [-0.5, -0.5, -1e4], [-2.0, -2.0, 1e4]],
        mask=[[1, 1, 0]] * 3,
        advantages=[1.0, -1.0, -1.0],
        weights=[[1.0] * 3, [1.0] * 3, [0.0, 0.0, 1.0]],
    ),
    "slime per token": Row(
        "slime/mis",
        {"tis_upper_bound": 99.0},
        {MEAN: 0.3},
        [logs(0.1, 0.2, 1, 1, 1), logs(0.1, 0.2, 0.3, 0.4, 0.5), logs(0.6, 1, 1, 1, 1)],
        mask=[[1, 1, 0, 0, 0], [1] * 5, [1, 0, 0, 0, 0]],
    ),
    "slime report per token": Row(
        values={f"{OWN}token/raw/mean": 6.5}, log_ratios=[logs(*(3.0 * k + j for j in (1, 2, 3))) for k in range(4)]
    ),
    "OpenRLHF vllm_kl": Row("openrlhf/tis", {}, {f"{OWN}kl/k1": -0.3}, [[0.1, 0.5], [0.3, 0.3]]),
}
"""Out of their unit tests and issues."""

BATCH: dict[str, Row] = {
    "TRL token_truncate": Row(
        "trl/token_truncate",
        {"vllm_importance_sampling_clip_max": 2.0},
        {f"{OWN}corrected/min": 0.135335, MEAN: 1.11963, HIGHEST: 2.0},
    ),
    "TRL token_mask": Row("trl/token_mask", {"vllm_importance_sampling_clip_max": 2.0}, {MEAN: 0.869634}),
    "TRL token_mask, both": Row(
        "trl/token_mask",
        {"vllm_importance_sampling_clip_min": 0.5, "vllm_importance_sampling_clip_max": 2.0},
        {f"{OWN}corrected/min": 0.0, MEAN: 0.790644, HIGHEST: 1.64872},
    ),
    "TRL sequence": Row(
        "trl/sequence_mask",
        {"vllm_importance_sampling_clip_max": 2.0},
        {f"{OWN}corrected/min": 0.818731, MEAN: 0.981657, HIGHEST: 1.2214},
    ),
    "axolotl token_truncate": Row(
        "axolotl/token_truncate", {"vllm_importance_sampling_cap": 2.0}, {f"{OWN}corrected/min": 0.5, MEAN: 1.16564}
    ),
    "axolotl token_mask": Row(
        "axolotl/token_mask", {"vllm_importance_sampling_cap": 2.0}, {f"{OWN}corrected/min": 0.5, MEAN: 0.978144}
    ),
    "verl token": Row(
        "verl/token",
        {},
        {
            MEAN: 1.11963,
            HIGHEST: 2.0,
            f"{OWN}corrected/min": 0.135335,
            ESS: 0.801104,
            f"{STAGE}high": 0.125,
        },
    ),
    "verl token, two bounds": Row(
        "verl/icepop", {"rollout_is_threshold": "0.5_2.0"}, {MEAN: 0.790644, ESS: 0.605909, MODIFIED: 0.375}
    ),
    "verl sequence": Row("verl/sequence", {}, {MEAN: 0.912118, ESS: 0.981995, HIGHEST: 1.2214}),
    "verl, swift off-policy": Row(
        values={
            f"{OWN}kl/k1": 0.0125,
            f"{OWN}kl/k3": 0.442345,
            f"{OWN}perplexity/train": 2.71065,
            f"{OWN}perplexity/rollout": 2.75465,
            f"{OWN}perplexity/ratio": 0.970995,
            f"{OWN}chi2/token": 2.57551,
            f"{OWN}chi2/sequence": -0.006375,
        }
    ),
    "verl token_k1": Row(
        "verl/token_k1", {"rollout_rs_threshold": "0.5_2"}, {MODIFIED: 0.375, f"{STAGE}rows_high": 2 / 3}
    ),
    "verl token_k3": Row("verl/token_k3", {"rollout_rs_threshold": 0.2}, {MODIFIED: 0.25}),
    "verl seq_mean_k1": Row("verl/seq_mean_k1", {"rollout_rs_threshold": "0.9_1.1"}, {MODIFIED: 0.125}),
    "verl seq_max_k3": Row("verl/seq_max_k3", {"rollout_rs_threshold": 0.5}, {MODIFIED: 0.5}),
    "slime mis": Row("slime/mis", {}, {f"{OWN}token/raw/mean": 1.42985, MEAN: 1.11963, MODIFIED: 0.125}),
    "SkyRL token": Row(
        "skyrl/token", {}, {f"{OWN}token/raw/mean": 1.42985, f"{OWN}token/raw/max": 4.48169, f"{STAGE}high": 0.125}
    ),
    "SkyRL outlier": Row(
        "skyrl/off_policy_correction",
        {"outlier_token_is_threshold_low": 0.2, "outlier_token_is_threshold_high": 100.0, "tis_ratio_type": "token"},
        {f"{STAGE}rows_low": 1 / 3, f"{OWN}stage/2/high": 0.125},
    ),
    "open-instruct clamp": Row("open-instruct/clamp", {}, {MEAN: 1.11963, ZEROED: 0.0, MODIFIED: 0.125}),
    "open-instruct mask": Row("open-instruct/mask", RHO, {MEAN: 0.790644, ZEROED: 0.375}),
    "open-instruct sequence": Row(
        "open-instruct/sequence",
        {"rho_mask_lower_bound": 0.9, "rho_mask_upper_bound": 1.1},
        {MEAN: 0.83847, ZEROED: 0.125},
    ),
    "swift token_truncate": Row("ms-swift/token_truncate", {}, {MEAN: 1.11963}),
    "swift token_mask": Row("ms-swift/token_mask", {}, {MEAN: 0.869634}),
    "swift sequence_truncate": Row("ms-swift/sequence_truncate", {}, {MEAN: 0.991145, ESS: 0.992009}),
    "swift sequence_mask": Row("ms-swift/sequence_mask", {}, {MEAN: 1.42985}),
    "prime-rl": Row("prime-rl/dppo", {}, {MODIFIED: 0.25, f"{OWN}kl/k3": 0.442345}),
    "NeMo raw": Row(
        values={f"{OWN}mult_prob_error": 2.52621, f"{OWN}kl/k3": 0.442345, f"{OWN}kl/reverse_k3": 0.699607}
    ),
    "NeMo tis": Row("nemo/tis", {RATIOS: 2.0}, {MEAN: 1.11963, MODIFIED: 0.125}),
    "NeMo icepop": Row("nemo/icepop", {RATIOS: 2.0, RATIOS_MIN: 0.5}, {MEAN: 0.790644, MODIFIED: 0.375}),
    "AReaL mask above": Row("areal/token_mask", {"upper": 2.0}, {MEAN: 0.993868, MODIFIED: 0.125}),
    "AReaL mask": Row("areal/token_mask", {"upper": 2.0, "lower": 0.5}, {MEAN: 1.26503, MODIFIED: 0.375}),
    "AReaL clamp": Row("areal/token_clamp", {"upper": 2.0, "lower": 0.5}, {MEAN: 1.16564, MODIFIED: 0.375}),
    "AReaL kl_k3": Row(values={f"{OWN}kl/reverse_k3": 0.699607, f"{OWN}kl/k3": 0.442345}),
    "XTuner": Row(
        "xtuner/rollout_is",
        {"rollout_is_threshold": (2.0, 0.5), "rollout_is_veto_threshold": (100.0, 0.2)},
        {f"{OWN}token/raw/mean": 1.42985, f"{OWN}stage/2/rows_low": 1 / 3},
    ),
}
"""On the one batch that all were run on."""

OVERFLOW: Rows = [[0.0, 100.0, 0.0]]
EMPTY: dict[str, Any] = {"log_ratios": [[-10.0]] * 3 + [[0.0]] * 2, "mask": [[1]] * 3 + [[0]] * 2}
EDGES: dict[str, Row] = {
    **{
        f"overflow, {name}": Row(name, options, {MEAN: 4 / 3}, OVERFLOW)
        for name, options in (
            ("trl/token_truncate", {"vllm_importance_sampling_clip_max": 2.0}),
            ("verl/token", {}),
            ("ms-swift/token_truncate", {}),
            ("areal/token_clamp", {"upper": 2.0}),
        )
    },
    "overflow, NeMo": Row("nemo/tis", {RATIOS: 2.0}, {MEAN: 2 / 3}, OVERFLOW, weights=[[1.0, 0.0, 1.0]]),
    "overflow, chi2": Row(values={f"{OWN}chi2/token": (2 + E(200)) / 3 - 1}, log_ratios=OVERFLOW),
    "NaN, TRL 1.16 and AReaL": Row("areal/token_clamp", {}, {MEAN: 1.0}, [[0.0, math.nan, 0.0]], weights=[[1.0] * 3]),
    "minus infinity, AReaL": Row("areal/token_clamp", {}, {MEAN: 1.0}, [[0.0, -math.inf, 0.0]], weights=[[1.0] * 3]),
    "empty rows": Row(
        "verl/sequence",
        {},
        {HIGHEST: E(-10), f"{STAGE}rows_low": 0.0, f"{OWN}perplexity/ratio": E(10)},
        **EMPTY,
    ),
    "empty rows, verl option": Row("verl/seq_mean_k1", {"rollout_rs_threshold": "0.5_2"}, {MODIFIED: 1.0}, **EMPTY),
    "empty rows, SkyRL": Row("skyrl/geometric", {}, {f"{STAGE}rows_low": 1.0}, **EMPTY),
}
"""Where float32 and the mask end."""

REFUSED_ROWS: dict[str, str] = {
    "verl IcePop, std .3771236": "a spread of weights after the rule is not given: it hides what the rule took away",
    "slime report, per-rollout mean 8.0": "a mean over samples depends on how tokens are dealt to them",
    "slime mis.py docstring, .35 per sample": "a mean over samples depends on how tokens are dealt to them",
    "slime mis.py docstring, sequence example 8/3": "a mean over samples depends on how tokens are dealt to them",
    "slime #1917": "an advantage is one for each row here; the report's are of tokens within one",
    "NeMo guide, js about 9": "one of its two terms is no divergence on the rollout's samples",
    "NeMo sequence error, masked_correct_pct .5": "needs which rows were rewarded; only their advantage is known",
    "SkyRL, minimum and spread of |l|": "minimum and spread are given of l, not of |l|",
    "TRL #6789, #7269, #5814": "measured on models; the definitions are sequence/raw and sequence/geometric",
    "tunix, mean of means 2.25": "a mean of means depends on how tokens are dealt to calls",
    "unsloth token_truncate, mean .746423": "padding counts as 0 in it",
    "verl token, std .557886 and .63764, .475745": "a spread of clamped values hides what the clamp cut off",
    "verl token, fraction low .25": "a cap leaves what is below 1/cap as it is",
    "verl token, seq_mean 1.13914": "a mean over rows of token weights depends on their lengths",
    "verl log_ppl_diff -.0361111, abs .0972222": "a mean over rows of k1; ours are perplexity/ratio and kl/k1",
    "verl chi2_token 7.85e16 on overflow": "of a clamped ratio; ours is of the ratio itself, e^200/3",
    "swift chi2_seq .106076": "of the geometric mean; ours is of the product",
    "swift ess .852292, .850116": "zeros and small weights are lifted to 1/upper in it",
    "slime mis, 1.34595, 1.13914, .083333 per sample": "a mean over samples depends on how tokens are dealt to them",
    "slime mis, min_final .617774, max_final 1.62337": "means of minima and of maxima are no extremes",
    "SkyRL std 1.26851, min 0.0": "padding counts as 0 in them",
    "SkyRL clip 0.0 after outliers": "an earlier stage hides it there; here it is 0.125, whatever came before",
    "prime-rl .428019, .266201, .194444": "a mean over samples depends on how tokens are dealt to them",
    "prime-rl masked .642028, unmasked .375785": "k3 of what a rule takes and leaves is not reported separately",
    "NeMo js .100058": "one of its two terms is no divergence on the rollout's samples",
    "AReaL behave_approx_kl": "of kept tokens alone, by the rule's own choice of them; kl/k1 is of all",
    "XTuner std .48526, ESS .852292, catastrophic token .125": "of clamped values; a veto is counted by rows here",
    "SkyRL, e^20 for an overflow": "the raw ratio is not clamped: it is e^100, and finite in float64",
    "verl k3 = inf on overflow": "k3 is taken in float64, where it is finite",
    "NeMo oob 0 on overflow": "an infinite ratio is above every bound",
    "NaN means of TRL in July, verl, SkyRL, swift": "a token without a number is left out, and counted",
    "TRL, verl, SkyRL, swift .6667 for minus infinity": "a token without a number is left out, and counted",
    "TRL empty rows, mean .400027, max 1": "a row without a token has no ratio",
    "verl empty rows, fraction .6, minimum 0": "a row without a token has no ratio",
    "ppl_ratio 7.71 of empty rows": "a row without a token has no perplexity; the live ones have 12.18, geometrically",
    "mean of rank means 1.25, .166667, .833333": "a mean over ranks depends on how tokens are dealt to them",
}
"""Rows, or parts of rows, that are other definitions than ours, and why."""
