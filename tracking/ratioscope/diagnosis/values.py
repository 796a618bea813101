"""Causes that show in the values themselves: absent, absurd, filled in, or the same on both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratioscope.diagnosis import thresholds
from ratioscope.diagnosis.findings import Sign, Unchecked
from ratioscope.state.worst import tokens_of

if TYPE_CHECKING:
    from ratioscope.diagnosis.run import Run


def nothing_scored(run: Run) -> Sign | None:
    """Windows with rows and without a valid token."""
    whole = run.whole
    whole.need("counts/tokens")
    empty = run.without_tokens
    if not empty:
        return None
    masked = whole.get("counts/rows_empty") or 0.0
    at = f"{len(empty):,} of {run.windows:,} windows have no valid token ({masked:,.0f} rows are empty over the run)"
    return Sign("error" if len(empty) == run.windows else "warning", "high", at, (empty[0], empty[-1]))


def identical(run: Run) -> Sign | None:
    """Both sides are equal to the bit on every one of more than 100 tokens."""
    whole = run.whole
    if run.foreign:
        return _all_zero(run)
    same = whole.need("identical")
    if not same:
        return None
    return Sign("warning", "high", f"all {whole.tokens:,.0f} log-probabilities are equal to the bit on both sides")


def _all_zero(run: Run) -> Sign | None:
    """The same of a log that has no count of tokens: no |d| was above 0 in any window.

    Raises:
        Unchecked: if the log has no largest |d|.
    """
    if run.whole.need("token/log_ratio/abs_max"):
        return None
    text = f"the largest |d| is exactly 0 in each of {run.windows:,} windows; a window without a token looks the same"
    return Sign("warning", "medium", text)


def logits(run: Run) -> Sign | None:
    """Rollout values above 0, which no log-probability is: a share if they are logits, a few if corrupted."""
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
    found = {name: whole.need(f"counts/{name}") for name in ("missing", "nan", "inf")}
    total = sum(found.values())
    if not total:
        return None
    share = total / (total + whole.tokens)
    kinds = ", ".join(f"{count:,.0f} {name}" for name, count in found.items() if count)
    return Sign(
        "error" if share >= thresholds.MANY_MISSING else "warning",
        "high",
        f"{share:.2%} of tokens have no usable log-probability ({kinds}); they are in no statistic",
    )


def zero_filled(run: Run) -> Sign | None:
    """The rollout has exact zeros that the trainer has not, most of the worst tokens among them.

    The trainer finds these tokens as likely as the rest.
    """
    found = _zeros(run)
    if found is None or found[1]:
        return None
    return Sign("error", "high", f"{found[0]}, and they are as likely as the rest: the engine gave none, 0 was put in")


def filler_scored(run: Run) -> Sign | None:
    """The same, and the trainer finds these tokens far less likely than the rest: nobody sampled them."""
    found = _zeros(run)
    if found is None or not found[1]:
        return None
    return Sign("error", "high", f"{found[0]}, far less likely than the rest: tokens that the policy did not sample")


def _zeros(run: Run) -> tuple[str, bool] | None:
    """Evidence of wrong zeros, and whether those tokens were not sampled at all; None if there are none."""
    whole = run.whole
    state, n = whole.state, whole.enough(1)
    if run.number("sampling.top_k") == 1.0 or run.number("sampling.temperature") == 0.0:
        msg = "greedy sampling has a log-probability of 0 for every token"
        raise Unchecked(msg)
    if not state.count("lag/n") and n > 2 * (whole.get("counts/rows") or 0.0):
        msg = "the journal is of a version that did not count zeros"
        raise Unchecked(msg)
    zeros, real = state.count("zero_rollout_logp"), state.count("zero_train_logp")
    wrong = whole.below(thresholds.ZERO_WRONG)
    excess = (zeros - real) / n
    if excess < thresholds.ZERO_SHARE or wrong < max(1.0, thresholds.ZERO_WRONG_SHARE * excess * n):
        return None
    worst = [token for token in tokens_of(state.top.tokens) if token.log_ratio <= thresholds.ZERO_WRONG]
    if 2 * sum(token.rollout_logp == 0.0 for token in worst) < max(len(worst), 1):
        return None
    view = dict(zip(_slots(), state.sums.tolist(), strict=True))
    off = -view["token/d"] / (zeros - real)
    rest = n - zeros
    usual = -view["logp/x"] / rest if rest > 0.1 * n else None
    text = f"{zeros:,} of {n:,.0f} rollout log-probabilities are exactly 0 (the trainer has {real:,}); the trainer's "
    text += f"are {off:.3g} nats below 0 there on the average" + ("" if usual is None else f", {usual:.3g} elsewhere")
    return text, usual is not None and off > thresholds.FILLER_FACTOR * usual + thresholds.FILLER_OFFSET


def _slots() -> tuple[str, ...]:
    from ratioscope.state.slots import SUMS

    return SUMS
