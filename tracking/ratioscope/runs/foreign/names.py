"""Table of what other trainers log about the two engines, and what each number is in our terms.

Read from their public sources: TRL 1.16, and verl, slime, NeMo-RL, prime-rl and open-instruct as of 2026. Notation as
in the reference of metrics: ``d = train_logp - rollout_logp`` of a token, ``r = exp(d)``.
"""

from __future__ import annotations

from dataclasses import dataclass

CUT = "after the cut"
_MEANS = "a mean over ranks of their means, averaged over the logging window; ours pools tokens"
_ROWS = "a row without a token counts too, as a ratio of 1"
_SAMPLES = "by default a mean over samples of each sample's mean; ours pools tokens"
_BYPASS = "in bypass mode of the current policy, and a mean over micro-batches"
_PACKS = "verl's over the batch, or XTuner's of the same name, a mean over packs"
_CURRENT = "of the current policy; older versions average over sequences, newer ones over tokens"
_PPO = "PPO's own ratio, current over previous policy: it does not measure the engine"
_BATCHES = "averaged over micro-batches, in some versions of the last sample only, then over ranks; ours pools tokens"
_OWN_RULE = "of the loss's own rule (probability difference and sign of the advantage), not of a ratio outside bounds"
_LOG_PPL = "a mean over rows of their mean log-probability; ours pools tokens, or has the perplexity itself"
_STATISTIC = "of the rejection's own statistic, of which k1 is -d and the standard deviation is of clamped values"


@dataclass(frozen=True)
class Name:
    """A statistic under another trainer's name.

    Attributes:
        framework: who logs it.
        pattern: its key without ``train/``; ``*`` stands for anything.
        ours: the statistic of ours that it is or is nearest to; empty if it is none of ours.
        differs: in what it differs, or under what condition it does; empty if the definitions agree.
        exact: whether the definitions agree, where the condition of ``differs`` does not hold.
    """

    framework: str
    pattern: str
    ours: str = ""
    differs: str = ""
    exact: bool = False

    @property
    def relation(self) -> str:
        """In one word: ``"same"``, ``"near"`` for a stand-in, or ``"other"``."""
        return "same" if self.exact else "near" if self.ours else "other"


def _trl() -> tuple[Name, ...]:
    gap, ratio, raw = (
        f"sampling/{name}"
        for name in ("sampling_logp_difference", "importance_sampling_ratio", "raw_importance_sampling_ratio")
    )
    cut = f"{CUT}, masked ratios as 0, in sequence modes rows without a token as 1"
    return (
        Name("TRL", f"{gap}/mean", "ratioscope/log_ratio/abs_mean", _MEANS),
        Name("TRL", f"{gap}/max", "ratioscope/token/log_ratio/abs_max", "averaged over the window: at most ours"),
        Name("TRL", f"{ratio}/mean", "ratioscope/corrected/mean", f"{cut}; {_MEANS}"),
        Name("TRL", f"{ratio}/min", "ratioscope/corrected/min", f"{cut}; averaged over the window: at least ours"),
        Name("TRL", f"{ratio}/max", "ratioscope/corrected/max", f"{cut}; averaged over the window: at most ours"),
        *(Name("TRL", f"{raw}/{end}", f"{raw}/{end}", _MEANS) for end in ("min", "mean", "max")),
        Name("TRL", "sampling/frac_modified_importance_sampling_ratio", "ratioscope/modified/fraction", _MEANS),
    )


_CORR = "rollout_corr/"
_BY_TOKENS = "weighted by tokens where verl's level is the sequence; ours by sequences"
_EMPTY = f"{_ROWS}; {_BYPASS}"
_VERL_WEIGHTS = (
    Name("verl", f"{_CORR}rollout_is_mean", "ratioscope/corrected/mean", f"{CUT}; {_BY_TOKENS}"),
    Name("verl", f"{_CORR}rollout_is_eff_sample_size", "ratioscope/ess/corrected", f"{CUT}; {_BY_TOKENS}"),
    Name("verl", f"{_CORR}rollout_is_ratio_fraction_high", "ratioscope/modified/high", _ROWS),
    Name(
        "verl",
        f"{_CORR}rollout_is_ratio_fraction_low",
        differs="below 1/upper although truncation leaves the low side as it is; ours counts what the rule changes",
    ),
    Name("verl", f"{_CORR}rollout_is_oob_ratio", "ratioscope/modified/fraction", _BY_TOKENS),
    *(
        Name("verl", f"{_CORR}rollout_is_{end}", differs=f"{CUT} at the token level, before it at the sequence level")
        for end in ("max", "min")
    ),
    Name("verl", f"{_CORR}rollout_is_std", differs=f"{CUT}, of clamped weights"),
    Name("verl", f"{_CORR}rollout_is_seq_*", differs="of each row's mean weight, neither product nor geometric mean"),
    Name("verl", f"{_CORR}rollout_is_batch_norm_factor", differs="what weights are divided by; not a ratio"),
)
_VERL_POLICIES = (
    Name("verl", f"{_CORR}kl", "ratioscope/kl/k1", _BYPASS, exact=True),
    Name("verl", f"{_CORR}k3_kl", "ratioscope/kl/k3", _BYPASS, exact=True),
    Name("verl", f"{_CORR}chi2_token", "ratioscope/chi2/token", f"d within 20 nats; {_BYPASS}", exact=True),
    Name("verl", f"{_CORR}chi2_seq", "ratioscope/chi2/sequence", f"D within 20 nats; {_EMPTY}"),
    Name("verl", f"{_CORR}training_ppl", "ratioscope/perplexity/train", _EMPTY),
    Name("verl", f"{_CORR}rollout_ppl", "ratioscope/perplexity/rollout", _EMPTY),
    Name("verl", f"{_CORR}ppl_ratio", "ratioscope/perplexity/ratio", _EMPTY),
    Name("verl", f"{_CORR}*log_ppl*", differs=_LOG_PPL),
)
_VERL_OLDER = (
    Name("verl, XTuner", "mismatch/mismatch_kl", "ratioscope/kl/k1", _PACKS),
    Name("verl, XTuner", "mismatch/mismatch_k3_kl", "ratioscope/kl/k3", _PACKS),
    Name("verl, XTuner", "mismatch/mismatch_training_ppl", "ratioscope/perplexity/train", f"{_ROWS}; {_PACKS}"),
    Name("verl, XTuner", "mismatch/mismatch_rollout_ppl", "ratioscope/perplexity/rollout", f"{_ROWS}; {_PACKS}"),
    Name("verl, XTuner", "mismatch/mismatch_ppl_ratio", "ratioscope/perplexity/ratio", f"{_ROWS}; {_PACKS}"),
    Name("verl, XTuner", "mismatch/mismatch_*log_ppl*", differs=_LOG_PPL),
    Name(
        "verl, XTuner",
        "mismatch/rollout_is_*",
        differs="verl's after the cut, XTuner's of the same name before it, and the log does not say whose it is",
    ),
)
_DEBUG = "training/rollout_"
_VERL: tuple[Name, ...] = (
    *_VERL_POLICIES,
    *_VERL_WEIGHTS,
    Name("verl", f"{_CORR}rollout_rs_*masked_fraction", differs="what the rejection drops, which is no weight's cut"),
    Name("verl", f"{_CORR}rollout_rs_*", differs=_STATISTIC),
    *_VERL_OLDER,
    Name("verl", f"{_DEBUG}probs_diff_mean", "ratioscope/probability/abs_mean", exact=True),
    Name("verl", f"{_DEBUG}probs_diff_max", "ratioscope/probability/abs_max", exact=True),
    Name("verl", f"{_DEBUG}probs_diff_std", differs="standard deviation of the absolute probability difference"),
    Name("verl", f"{_DEBUG}actor_probs_pearson_corr", "ratioscope/probability/pearson", exact=True),
)


def _slime() -> tuple[Name, ...]:
    final = "extremes and means of the weights in the loss, averaged over samples and micro-batches"
    return (
        Name("slime", "train_rollout_logprob_abs_diff", "ratioscope/log_ratio/abs_mean", _SAMPLES),
        Name("slime", "tis", "ratioscope/token/raw/mean", f"before the cut; {_SAMPLES}"),
        Name("slime", "tis_clipfrac", "ratioscope/modified/fraction", _SAMPLES),
        Name("slime", "tis_abs", differs="mean of |r - 1|"),
        Name("slime", "ois", differs=_PPO),
        Name("slime", "opsm_clipfrac", differs="a sum over samples, not a fraction, of sequences that OPSM masks"),
        Name("slime", "mis_kl", "ratioscope/kl/k1", _SAMPLES),
        Name("slime", "mis_k3_kl", "ratioscope/kl/k3", _SAMPLES),
        Name("slime", "mis_chi2_token", "ratioscope/chi2/token", f"d within 20 nats; {_SAMPLES}"),
        Name("slime", "mis_chi2_seq", "ratioscope/chi2/sequence", "D within 20 nats; per token loss weights by tokens"),
        Name("slime", "mis_training_ppl", "ratioscope/perplexity/train", "per token loss weights by tokens"),
        Name("slime", "mis_rollout_ppl", "ratioscope/perplexity/rollout", "per token loss weights by tokens"),
        Name("slime", "mis_ppl_ratio", "ratioscope/perplexity/ratio", "per token loss weights by tokens"),
        Name("slime", "mis_*log_ppl*", differs=_LOG_PPL),
        Name("slime", "mis_*before*", differs="before the cut, at a level that the name does not tell"),
        Name("slime", "mis_*after*", differs=f"{CUT}, at a level that the name does not tell"),
        Name("slime", "mis_*final", differs=final),
        Name("slime", "mis_*fraction*", differs="at a level that the name does not tell, averaged over samples"),
        Name("slime", "mis_*batch_norm_factor", differs="what weights are divided by; not a ratio"),
    )


def _nemo() -> tuple[Name, ...]:
    kind = "only where reference_policy_kl_type is k3, its default"
    cut = f"{CUT}, an infinite weight as 0; by tokens, or by sequences with sequence_level_importance_ratios"
    return (
        Name("NeMo-RL", "gen_kl_error", "ratioscope/kl/k3", kind, exact=True),
        Name("NeMo-RL", "policy_kl_error", "ratioscope/kl/reverse_k3", kind, exact=True),
        Name("NeMo-RL", "js_divergence_error", differs="a Jensen-Shannon estimate from sampled tokens"),
        Name("NeMo-RL", "token_mult_prob_error", "ratioscope/mult_prob_error", exact=True),
        Name("NeMo-RL", "sampling_importance_ratio", "ratioscope/corrected/mean", cut),
        Name("NeMo-RL", "is_oob_ratio", differs="of tokens, or of sequences by their geometric mean, as the type says"),
        Name("NeMo-RL", "*_seq_mult_prob_error*", differs="of each row's mean exp(|d|)"),
        Name("NeMo-RL", "num_masked_seqs_by_logprob_error", differs="a number of sequences that a row filter drops"),
        Name("NeMo-RL", "probs_ratio*", differs=_PPO),
    )


def _prime() -> tuple[Name, ...]:
    found = [Name("prime-rl", f"mismatch_kl{every}/mean", "ratioscope/kl/k3", _CURRENT) for every in ("", "/all")]
    return (
        *found,
        Name("prime-rl", "mismatch_kl/*", differs="spread, extremes or parts of the k3 terms; ours has their mean"),
        Name("prime-rl", "masked_mismatch_kl/*", differs="k3 over the tokens that the loss masks alone"),
        Name("prime-rl", "unmasked_mismatch_kl/*", differs="k3 over the tokens that the loss keeps alone"),
        Name("prime-rl", "is_masked*/*", differs=_OWN_RULE),
        Name("prime-rl", "sequence_masked_low/*", differs="share of sequences with a token below a bound: a veto"),
    )


def _open_instruct() -> tuple[Name, ...]:
    debug, who = "debug/vllm_vs_local_logprob_diff_", "open-instruct"
    return (
        Name(who, f"{debug}mean", "ratioscope/log_ratio/abs_mean", _BATCHES),
        Name(who, f"{debug}max", "ratioscope/token/log_ratio/abs_max", "averaged over ranks: at most ours"),
        Name(who, f"{debug}std", differs="standard deviation of |d|, not of d"),
        Name(who, "debug/vllm_local_reverse_kl", differs="weighted by the rollout's probability in older versions"),
        Name(who, "val/rho_weight", "ratioscope/corrected/mean", f"{CUT}; {_BATCHES}"),
        Name(who, "val/rho_drop*", differs="of a ratio, its geometric mean or a divergence, as rho_mask_* says"),
        Name(who, "val/rho_*", differs="of a ratio within 10 nats or its geometric mean, as the config says"),
        Name(who, "val/tis_ratio", "ratioscope/corrected/mean", f"{CUT}, d within 10 nats; {_BATCHES}"),
        Name(who, "val/tis_clipfrac", "ratioscope/modified/fraction", f"d within 10 nats; {_BATCHES}"),
        Name(who, "val/ratio*", differs=_PPO),
    )


NAMES: tuple[Name, ...] = (*_trl(), *_VERL, *_slime(), *_nemo(), *_prime(), *_open_instruct())
"""Every name that is known; of several patterns that fit, the first counts."""
