"""Causes that show by the position of the mismatch: at a lag, at a position, in some completions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ratioscope.diagnosis import thresholds
from ratioscope.diagnosis.core import core, placeholder, singles
from ratioscope.diagnosis.findings import Sign, Unchecked
from ratioscope.state.slots import DECILES
from ratioscope.state.worst import tokens_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.diagnosis.pool import Pool
    from ratioscope.diagnosis.run import Run
    from ratioscope.state.worst import WorstToken


class Tenth(NamedTuple):
    """One tenth of the completions: its index, its mean absolute log-ratio in nats, and its number of tokens."""

    tenth: int
    abs_mean: float
    tokens: float


class _Start(NamedTuple):
    """A tenth from which on the mismatch is larger: certainty in standard errors, index, and mean |d| on both sides."""

    errors: float
    tenth: int
    before: float
    after: float


def shifted(run: Run) -> Sign | None:
    """The trainer's log-probability of a token follows the engine's of the next or previous token.

    The correlation with the engine's log-probability of the same token is far lower.
    """
    pool = run.steady
    lag_0 = pool.get("alignment/lag_0")
    lags = {lag: pool.need(f"alignment/lag_{lag}") for lag in (-1, 1)}
    now = -1.0 if lag_0 is None else lag_0
    lag, best = max(lags.items(), key=lambda item: item[1])
    if best < max(thresholds.LAG_LEAST, now + thresholds.LAG_AHEAD):
        return None
    if pool.summary is not None and pool.beyond(thresholds.LAG_WRONG) < thresholds.LAG_WRONG_SHARE * pool.tokens:
        return None
    pairs = max(pool.tokens - (pool.get("counts/rows") or 0.0), 4.0)
    # Fisher's z: atanh of a correlation of n pairs has the standard error 1 / sqrt(n - 3); two of them are compared.
    errors = (math.atanh(min(best, 0.999999)) - math.atanh(max(now, -0.999999))) * math.sqrt((pairs - 3.0) / 2.0)
    if errors < thresholds.CERTAIN and best < thresholds.LAG_EXACT:
        return None
    text = (
        f"the trainer's log-probability of a token follows the engine's of the {'next' if lag > 0 else 'previous'} "
        f"one: correlation {best:.3f} at lag {lag:+d}, {now:.3f} at lag 0"
    )
    return Sign("error", "high" if errors >= thresholds.CERTAIN else "medium", text)


def last_token(run: Run) -> Sign | None:
    """The last token's mean |d| is several times that of the other tokens, in several completions.

    The last token holds most of the excess of the last tenth.
    """
    pool = run.steady
    last, completions, n = pool.need("position/last/abs_mean"), pool.need("counts/rows"), pool.tokens
    if n <= completions:
        msg = "completions have one token each"
        raise Unchecked(msg)
    if completions < thresholds.LAST_COMPLETIONS:
        msg = f"{completions:.0f} completions are too few; needs {thresholds.LAST_COMPLETIONS}"
        raise Unchecked(msg)
    others = max(pool.abs_mean * n - last * completions, 0.0) / (n - completions)
    # One absurd last token can hold the whole mean; then the sum is no more than a few times the largest |d|.
    single = last * completions < thresholds.LAST_SEVERAL * pool.need("token/log_ratio/abs_max")
    if single or last < max(thresholds.LAST_NATS, thresholds.LAST_FACTOR * others):
        return None
    if _last_token_share(pool) < thresholds.LAST_SHARE or _has_placeholders_elsewhere(pool):
        return None
    text = (
        f"mean |d| of last tokens is {last:.3g} nats, {last / max(others, 1e-9):.0f} times the {others:.2g} of the "
        f"other tokens ({completions:,.0f} completions)"
    )
    return Sign("error" if last > 1.0 else "warning", "high", text)


def _has_placeholders_elsewhere(pool: Pool) -> bool:
    """Checks whether a placeholder stands on tokens most of which are not last ones."""
    if pool.summary is None or placeholder(pool.summary) is None:
        return False
    worst = tokens_of(pool.summary.top.tokens)
    return 2 * sum(token.position == token.row_tokens - 1 for token in worst) < len(worst)


def tail(run: Run) -> Sign | None:
    """A few tokens beyond 5 nats, all in the last tenth of completions, and not only the very last token."""
    pool = run.steady
    absurd, n = pool.beyond(thresholds.TAIL_NATS), pool.enough(1)
    if not absurd or absurd > thresholds.TAIL_MOST * n:
        return None
    tenths = tenths_of(pool)
    if len(tenths) < 2:
        msg = "needs two tenths of completions with tokens, which the journal counts by position"
        raise Unchecked(msg)
    if _last_token_share(pool) >= thresholds.LAST_SHARE:
        return None
    *earlier, end = tenths
    before = _mean(earlier)
    # Half of the nats that the absurd tokens have at least must be in the last tenth.
    elsewhere = end.tokens * end.abs_mean < 0.5 * absurd * thresholds.TAIL_NATS
    # Positions that are wrong from a token on fill the tenths before the last, too; a few last tokens do not.
    nearby = earlier[-2:][0].abs_mean > thresholds.TAIL_BEFORE * end.abs_mean
    if elsewhere or nearby or end.abs_mean < thresholds.TAIL_FACTOR * before:
        return None
    text = (
        f"{absurd:,} tokens have |d| > {thresholds.TAIL_NATS:g}, at the end: mean |d| is {end.abs_mean:.3g} in the "
        f"last tenth of completions and {before:.2g} before it; single tokens, no general drift"
    )
    return Sign("error", "high", text)


def starts_at_a_position(run: Run) -> Sign | None:
    """Mean |d| is small in the first tenths of completions, and several times larger in all tenths from some on."""
    pool = run.steady
    tenths = usual_tenths(pool)
    if len(tenths) < 4:
        msg = f"needs four tenths of completions with tokens, which the journal counts by position; got {len(tenths)}"
        raise Unchecked(msg)
    spread = pool.need("token/log_ratio/std")
    starts = [start for index in range(2, len(tenths) - 1) if (start := _start(tenths, index, spread)) is not None]
    if not starts:
        return None
    start = max(starts)
    text = (
        f"mean |d| is {start.before:.2g} in the first {start.tenth} tenths of completions and {start.after:.2g} from "
        f"there on ({start.errors:.0f} standard errors more)"
    )
    hints = [
        f"{name} {run.setting(f'engine.{name}')}"
        for name in ("kv_cache_dtype", "quantization")
        if run.setting(f"engine.{name}") not in ("unknown", None, "none", "auto")
    ]
    return Sign("warning", "high" if hints else "medium", ", ".join([text, *hints]))


def _start(tenths: Sequence[Tenth], index: int, spread: float) -> _Start | None:
    """Tests whether the mismatch begins at one tenth: every later tenth above every earlier one, with certainty."""
    early, late = tenths[:index], tenths[index:]
    counts = [sum(tenth.tokens for tenth in side) for side in (early, late)]
    if min(counts) < thresholds.START_TOKENS:
        return None
    before, after = _mean(early), _mean(late)
    errors = (after - before) / max(spread * math.sqrt(sum(1.0 / n for n in counts)), 1e-12)
    large = max(thresholds.START_FACTOR * before, thresholds.START_NATS) <= after <= thresholds.START_MOST
    values = [tenth.abs_mean for tenth in early]
    level = max(values) <= thresholds.START_LEVEL * min(values)
    above = min(tenth.abs_mean for tenth in late) > max(values)
    if not (large and level and above and errors >= thresholds.CERTAIN):
        return None
    return _Start(errors, tenths[index].tenth, before, after)


def mispaired_rows(run: Run) -> Sign | None:
    """Some completions have a mean |d| beyond 1 nat because most of their tokens are off; the others are not."""
    pool = run.steady
    completions = pool.need("counts/rows")
    off, tokens = float(pool.state.count("row/over_1nat")), pool.enough(1)
    if off < 2 or off > thresholds.ROW_MOST * completions:
        return None
    wrong = pool.beyond(thresholds.ROW_TOKEN) - len(singles(pool))
    expected = off / completions * tokens
    # A single absurd token lifts the mean of its completion, and noise on all tokens is not that of some completions.
    if not thresholds.ROW_SHARE[0] * expected <= wrong <= thresholds.ROW_SHARE[1] * expected:
        return None
    others = pool.abs_quantile(thresholds.ROW_OTHERS * (1.0 - off / completions))
    if others > thresholds.ROW_NEAR or core(pool).is_multiple:
        return None
    worst = pool.need("row/abs_mean_max")
    text = (
        f"{off:,.0f} of {completions:,.0f} completions have a mean |d| beyond {thresholds.ROW_NATS:g} nat (up to "
        f"{worst:.3g}), and {wrong / tokens:.1%} of tokens have |d| >= {thresholds.ROW_TOKEN:g}, about as many as "
        "these completions hold: the average over completions hides it"
    )
    return Sign("error", "medium", text)


def tenths_of(pool: Pool) -> list[Tenth]:
    """Tenths of the completions that hold a token."""
    return _tenths(pool, [])


def usual_tenths(pool: Pool) -> list[Tenth]:
    """Tenths of the completions that hold a token, without single absurd tokens.

    Raises:
        Unchecked: if there are more absurd tokens than the state names.
    """
    return _tenths(pool, singles(pool))


def _tenths(pool: Pool, removed: Sequence[WorstToken]) -> list[Tenth]:
    nats = [0.0] * len(DECILES)
    totals = [float(pool.state.count(f"{name}/n")) for name in DECILES]
    counts = list(totals)
    for token in removed:
        tenth = len(DECILES) * token.position // token.row_tokens
        nats[tenth] += abs(token.log_ratio)
        counts[tenth] -= 1.0
    means = [pool.get(f"{name}/abs_mean") for name in DECILES]
    return [
        Tenth(index, max(mean * totals[index] - nats[index], 0.0) / n, n)
        for index, (mean, n) in enumerate(zip(means, counts, strict=True))
        if mean is not None and n > 0.0
    ]


def unevenness(pool: Pool) -> float:
    """Largest mean |d| of a tenth of the completions over the smallest; 1 where too few tokens tell."""
    means = [tenth.abs_mean for tenth in usual_tenths(pool) if tenth.tokens >= thresholds.MODE_PLACE]
    return max(means) / max(min(means), 1e-12) if len(means) > 1 else 1.0


def _mean(tenths: Sequence[Tenth]) -> float:
    """Mean absolute log-ratio over the tokens of several tenths, in nats."""
    return sum(tenth.abs_mean * tenth.tokens for tenth in tenths) / max(sum(tenth.tokens for tenth in tenths), 1.0)


def _last_token_share(pool: Pool) -> float:
    """Share of the last tenth's excess over the other tenths that the last tokens hold; 0 without an excess."""
    *earlier, end = tenths_of(pool)
    last, completions = pool.need("position/last/abs_mean"), pool.need("counts/rows")
    usual = _mean(earlier)
    excess = (end.abs_mean - usual) * end.tokens
    return (last - usual) * completions / excess if excess > 0.0 else 0.0
