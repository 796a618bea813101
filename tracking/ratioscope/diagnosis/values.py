"""Causes that show in the values themselves: absent, absurd, filled in, or equal on both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ratioscope.diagnosis import thresholds
from ratioscope.diagnosis.core import stand_in
from ratioscope.diagnosis.findings import Sign, Unchecked
from ratioscope.diagnosis.positions import usual_tenths
from ratioscope.state.slots import SUMS
from ratioscope.state.worst import tokens_of

if TYPE_CHECKING:
    from ratioscope.diagnosis.pool import Pool
    from ratioscope.diagnosis.run import Run
    from ratioscope.summary.host import HostSummary


class _Zeros(NamedTuple):
    """Wrong zeros among the rollout's log-probabilities.

    Attributes:
        evidence: the numbers, as text.
        unlikely: whether the trainer finds these tokens far less likely than the rest, so that no engine sampled them.
    """

    evidence: str
    unlikely: bool


def nothing_scored(run: Run) -> Sign | None:
    """Windows with completions and without a valid token."""
    whole = run.whole
    whole.need("counts/tokens")
    empty = run.without_tokens
    if not empty:
        return None
    masked = whole.get("counts/rows_empty") or 0.0
    text = f"{len(empty):,} of {run.windows:,} windows have no valid token ({masked:,.0f} completions are empty)"
    return Sign("error" if len(empty) == run.windows else "warning", "high", text, (empty[0], empty[-1]))


def identical(run: Run) -> Sign | None:
    """Both sides are equal to the bit on every one of more than 100 tokens."""
    whole = run.whole
    if run.foreign:
        return _all_zero(run)
    if not whole.need("identical"):
        return None
    return Sign("warning", "high", f"all {whole.tokens:,.0f} log-probabilities are equal to the bit on both sides")


def _all_zero(run: Run) -> Sign | None:
    """Checks a log without a count of tokens: no |d| was above 0 in any window.

    Raises:
        Unchecked: if the log has no largest |d|.
    """
    if run.whole.need("token/log_ratio/abs_max"):
        return None
    text = f"the largest |d| is exactly 0 in each of {run.windows:,} windows; a window without a token looks the same"
    return Sign("warning", "medium", text)


def logits(run: Run) -> Sign | None:
    """Rollout values above 0, which no log-probability is: a share if they are logits, a few if memory is corrupted."""
    whole = run.whole
    positive = whole.need("counts/positive_logp")
    if not positive:
        return None
    share = positive / max(positive + whole.tokens, 1.0)
    text = f"{positive:,.0f} rollout values are above 0, {share:.2%} of tokens"
    return Sign("error", "high", text) if share >= thresholds.LOGITS else Sign("warning", "low", f"{text}: a few only")


def missing(run: Run) -> Sign | None:
    """Masked-in tokens whose log-probability is None, NaN or infinite."""
    whole = run.whole
    counts = {name: whole.need(f"counts/{name}") for name in ("missing", "nan", "inf")}
    total = sum(counts.values())
    if not total:
        return None
    share = total / (total + whole.tokens)
    kinds = ", ".join(f"{count:,.0f} {name}" for name, count in counts.items() if count)
    return Sign(
        "error" if share >= thresholds.MANY_MISSING else "warning",
        "high",
        f"{share:.2%} of tokens have no usable log-probability ({kinds}); they are in no statistic",
    )


def zero_filled(run: Run) -> Sign | None:
    """The rollout has exact zeros that the trainer has not, most of the worst tokens among them.

    The trainer finds these tokens as likely as the rest.
    """
    zeros = _wrong_zeros(run)
    if zeros is None or zeros.unlikely:
        return None
    text = f"{zeros.evidence}, and they are as likely as the rest: the engine gave none, and 0 was filled in"
    return Sign("error", "high", text)


def filler_scored(run: Run) -> Sign | None:
    """Values that stand for tokens that no engine sampled: exact zeros, or one value on all of the worst tokens.

    Zeros are those that the trainer has not, of tokens that it finds far less likely; or those of both sides, where
    completions end in them.
    """
    if text := _constant(run.whole) or _padding_on_both(run.whole):
        return Sign("error" if "exactly" in text else "warning", "medium", text)
    zeros = _wrong_zeros(run)
    if zeros is None or not zeros.unlikely:
        return None
    text = f"{zeros.evidence}, far less likely than the rest: tokens that the policy did not sample"
    return Sign("error", "high", text)


def _constant(whole: Pool) -> str | None:
    """Evidence of many unlikely tokens with one and the same log-probability, which sampled tokens have not."""
    if whole.summary is None:
        return None
    value, unlikely, n = stand_in(whole.summary), whole.below(-thresholds.TAIL_NATS), whole.enough(1)
    if value is None or value == 0.0 or value < thresholds.STAND_IN or unlikely < thresholds.OUTLIER_SHARE * n:
        return None
    return (
        f"{unlikely:,} of {n:,.0f} tokens have d < {-thresholds.TAIL_NATS:g}, and the worst of them have exactly "
        f"{value:g} as the engine's log-probability: tokens that the policy did not sample"
    )


def _padding_on_both(whole: Pool) -> str | None:
    """Evidence of zeros on both sides at the ends of completions."""
    if whole.summary is None or whole.beyond(thresholds.TAIL_NATS):
        return None
    zeros, n = min(whole.summary.count(f"zero_{side}_logp") for side in ("train", "rollout")), whole.enough(1)
    tenths, last = usual_tenths(whole), whole.get("position/last/abs_mean")
    if zeros < thresholds.PADDING_SHARE * n or len(tenths) < 10 or last is None:
        return None
    usual = sum(tenth.abs_mean for tenth in tenths[:3]) / 3.0
    if max(last, tenths[-1].abs_mean) > thresholds.PADDING_LEFT * usual:
        return None
    return (
        f"{zeros / n:.0%} of tokens have a log-probability of 0 on both sides, and mean |d| falls from {usual:.2g} at "
        f"the start to {tenths[-1].abs_mean:.2g} in the last tenth of completions, as where padding is counted: it "
        "dilutes every mean"
    )


def _wrong_zeros(run: Run) -> _Zeros | None:
    """Finds exact zeros of the rollout that are not log-probabilities; None if there are none.

    Raises:
        Unchecked: if the engine sampled greedily, where every log-probability is 0, or if zeros were not counted.
    """
    whole = run.whole
    state, n = whole.state, whole.enough(1)
    if run.number("sampling.top_k") == 1.0 or run.number("sampling.temperature") == 0.0:
        msg = "greedy sampling has a log-probability of 0 for every token"
        raise Unchecked(msg)
    if not state.count("lag/n") and n > 2 * (whole.get("counts/rows") or 0.0):
        msg = "the journal is of a version that did not count zeros"
        raise Unchecked(msg)
    excess = (state.count("zero_rollout_logp") - state.count("zero_train_logp")) / n
    wrong = whole.below(thresholds.ZERO_WRONG)
    if excess < thresholds.ZERO_SHARE or wrong < max(1.0, thresholds.ZERO_WRONG_SHARE * excess * n):
        return None
    if _are_certain(whole, state, n) or not _half_of_worst_are_zero(state):
        return None
    return _described(state, n)


def _are_certain(whole: Pool, state: HostSummary, n: float) -> bool:
    """Checks whether the zeros are tokens that the engine's sampler left alone: far likelier than the other tokens.

    Where there are few others, the zeros are those of sampling near temperature 0 if none is unlikely.
    """
    at_zeros, elsewhere = _means(state, n)
    if elsewhere is None:
        return whole.below(-thresholds.TAIL_NATS) < thresholds.UNLIKELY_SHARE * n and n >= thresholds.FEWEST_TOKENS
    return at_zeros < thresholds.ZERO_ALIKE * elsewhere


def _half_of_worst_are_zero(state: HostSummary) -> bool:
    """Checks whether at least half of the worst tokens with a very negative d have a rollout log-probability of 0.

    Zeros that come from rounding are no worse than other tokens.
    """
    worst = [token for token in tokens_of(state.top.tokens) if token.log_ratio <= thresholds.ZERO_WRONG]
    return 2 * sum(token.rollout_logp == 0.0 for token in worst) >= max(len(worst), 1)


def _described(state: HostSummary, n: float) -> _Zeros:
    """Describes the zeros, and compares the trainer's log-probabilities there with those elsewhere."""
    zeros, real = state.count("zero_rollout_logp"), state.count("zero_train_logp")
    at_zeros, elsewhere = _means(state, n)
    text = (
        f"{zeros:,} of {n:,.0f} rollout log-probabilities are exactly 0 (the trainer has {real:,}); the trainer's "
        f"are {at_zeros:.3g} nats below 0 there on average"
    )
    text += "" if elsewhere is None else f", {elsewhere:.3g} elsewhere"
    unlikely = elsewhere is not None and at_zeros > thresholds.FILLER_FACTOR * elsewhere + thresholds.FILLER_OFFSET
    return _Zeros(text, unlikely)


def _means(state: HostSummary, n: float) -> tuple[float, float | None]:
    """Mean of the trainer's negative log-probability at the rollout's zeros, and of the rollout's elsewhere, in nats.

    The latter is None where there are too few other tokens.
    """
    zeros, real = state.count("zero_rollout_logp"), state.count("zero_train_logp")
    sums = dict(zip(SUMS, state.sums.tolist(), strict=True))
    # At a zero of the rollout d is the trainer's log-probability. The other tokens' d sum up to about 0 beside it.
    at_zeros = -sums["token/d"] / max(zeros - real, 1)
    others = n - zeros
    return at_zeros, -sums["logp/x"] / others if others > thresholds.ZERO_ELSEWHERE * n else None
