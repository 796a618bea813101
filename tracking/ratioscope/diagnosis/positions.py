"""Causes that show by where the mismatch sits: at a lag, at a position, in some rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ratioscope.diagnosis import thresholds
from ratioscope.diagnosis.findings import Sign, Unchecked

if TYPE_CHECKING:
    from ratioscope.diagnosis.pool import Pool
    from ratioscope.diagnosis.run import Run

_TENTHS = tuple(f"position/{at:02}" for at in range(10))


def shifted(run: Run) -> Sign | None:
    """The trainer's log-probability of a token goes with the engine's of the next or previous token.

    The correlation with the token's own is far lower.
    """
    pool = run.steady
    now = pool.get("alignment/lag_0")
    lags = {lag: pool.need(f"alignment/lag_{lag}") for lag in (-1, 1)}
    now = -1.0 if now is None else now
    lag, best = max(lags.items(), key=lambda item: item[1])
    pairs = max(pool.tokens - (pool.get("counts/rows") or 0.0), 4.0)
    if best < max(thresholds.LAG_LEAST, now + thresholds.LAG_AHEAD):
        return None
    if pool.summary is not None and pool.beyond(thresholds.LAG_WRONG) < thresholds.LAG_WRONG_SHARE * pool.tokens:
        return None
    apart = (math.atanh(min(best, 0.999999)) - math.atanh(max(now, -0.999999))) * math.sqrt((pairs - 3.0) / 2.0)
    if apart < thresholds.CERTAIN and best < thresholds.LAG_EXACT:
        return None
    which = "next" if lag > 0 else "previous"
    text = (
        f"the trainer's log-probability of a token goes with the engine's of the {which} one: correlation {best:.3f} "
    )
    text += f"at lag {lag:+d}, {now:.3f} at lag 0"
    return Sign("error", "high" if apart >= thresholds.CERTAIN else "medium", text)


def last_token(run: Run) -> Sign | None:
    """The last token of rows is several times as far off as the others, in several rows.

    It holds most of what is off in the last tenth.
    """
    pool = run.steady
    last, rows, n = pool.need("position/last/abs_mean"), pool.need("counts/rows"), pool.tokens
    if n <= rows:
        msg = "rows have one token each"
        raise Unchecked(msg)
    if rows < thresholds.LAST_ROWS:
        msg = f"{rows:.0f} rows are too few; needs {thresholds.LAST_ROWS}"
        raise Unchecked(msg)
    rest = max(pool.abs_mean * n - last * rows, 0.0) / (n - rows)
    single = last * rows < thresholds.LAST_SEVERAL * pool.need("token/log_ratio/abs_max")
    if (
        single
        or last < max(thresholds.LAST_NATS, thresholds.LAST_FACTOR * rest)
        or _last_share(pool) < thresholds.LAST_SHARE
    ):
        return None
    text = f"the last token of a row is off by {last:.3g} nats on the average, {last / max(rest, 1e-9):.0f} times the "
    return Sign("error" if last > 1.0 else "warning", "high", f"{text}{rest:.2g} of the others ({rows:,.0f} rows)")


def tail(run: Run) -> Sign | None:
    """A few tokens beyond 5 nats, all in the last tenth of rows, and not only the very last."""
    pool = run.steady
    absurd, n = pool.beyond(thresholds.TAIL_NATS), pool.enough(1)
    if not absurd or absurd > thresholds.TAIL_MOST * n:
        return None
    tenths = _tenths(pool)
    if len(tenths) < 2:
        msg = "needs two tenths of rows with tokens, which the journal counts by position"
        raise Unchecked(msg)
    if _last_share(pool) >= thresholds.LAST_SHARE:
        return None
    *earlier, end = tenths
    before = _mean(earlier)
    if end[2] * end[1] < 0.5 * absurd * thresholds.TAIL_NATS or end[1] < thresholds.TAIL_FACTOR * before:
        return None
    text = (
        f"{absurd:,} tokens have |d| > {thresholds.TAIL_NATS:g} and sit at the end: mean |d| {end[1]:.3g} in the last "
    )
    return Sign("error", "high", f"{text}tenth of rows, {before:.2g} before it; single ones, no general drift")


def starts_at_a_position(run: Run) -> Sign | None:
    """Mean |d| is small in all tenths of rows up to some tenth, and several times larger in all from there on."""
    pool = run.steady
    tenths = _tenths(pool)
    if len(tenths) < 4:
        msg = f"needs four tenths of rows with tokens, which the journal counts by position; got {len(tenths)}"
        raise Unchecked(msg)
    spread = pool.need("token/log_ratio/std")
    best: tuple[float, int, float, float] | None = None
    for at in range(2, len(tenths) - 1):
        early, late = tenths[:at], tenths[at:]
        counts = [sum(n for _, _, n in side) for side in (early, late)]
        if min(counts) < thresholds.START_TOKENS:
            continue
        before, after = _mean(early), _mean(late)
        error = spread * math.sqrt(sum(1.0 / n for n in counts))
        found = (after - before) / max(error, 1e-12)
        large = after >= max(thresholds.START_FACTOR * before, thresholds.START_NATS)
        if large and found >= thresholds.CERTAIN and min(a for _, a, _ in late) > max(a for _, a, _ in early):
            best = max(best or (0.0, 0, 0.0, 0.0), (found, tenths[at][0], before, after))
    if best is None:
        return None
    found, tenth, before, after = best
    text = f"mean |d| is {before:.2g} in the first {tenth} tenths of rows and {after:.2g} from there on "
    text += f"({found:.0f} standard errors apart)"
    hints = [
        f"{name} {run.setting(f'engine.{name}')}"
        for name in ("kv_cache_dtype", "quantization")
        if run.setting(f"engine.{name}") not in ("unknown", None, "none", "auto")
    ]
    return Sign("warning", "high" if hints else "medium", ", ".join([text, *hints]))


def mispaired_rows(run: Run) -> Sign | None:
    """Some rows have a mean d beyond 1 nat, the others none, and few rows lie between."""
    pool = run.steady
    rows, off = pool.need("counts/rows"), pool.beyond(thresholds.ROW_NATS, histogram="geometric_log_ratio")
    between = pool.beyond(thresholds.ROW_NATS / 4.0, histogram="geometric_log_ratio") - off
    here = rows - off - between
    if off < 2 or off > thresholds.ROW_MOST * rows or between > thresholds.ROW_BETWEEN * min(off, here):
        return None
    worst = pool.need("row/abs_mean_max")
    text = (
        f"{off:,} of {rows:,.0f} rows have a mean d beyond {thresholds.ROW_NATS:g} nat (mean |d| up to {worst:.3g}), "
    )
    return Sign("error", "medium", f"{text}the others do not: the average over rows hides it")


def _tenths(pool: Pool) -> list[tuple[int, float, float]]:
    """Which, mean absolute log-ratio and tokens of each tenth of the rows that has any."""
    state = pool.state
    found = ((at, pool.get(f"{name}/abs_mean"), state.count(f"{name}/n")) for at, name in enumerate(_TENTHS))
    return [(at, mean, float(n)) for at, mean, n in found if mean is not None]


def _mean(tenths: list[tuple[int, float, float]]) -> float:
    return sum(mean * n for _, mean, n in tenths) / max(sum(n for *_, n in tenths), 1.0)


def _last_share(pool: Pool) -> float:
    """Share of the last tenth's distance, beyond what the others lead to expect, that the last tokens hold."""
    *earlier, (_, end, n) = _tenths(pool)
    last, rows = pool.need("position/last/abs_mean"), pool.need("counts/rows")
    usual = _mean(earlier)
    excess = (end - usual) * n
    return (last - usual) * rows / excess if excess > 0.0 else 0.0
