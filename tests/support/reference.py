"""Independent reference: every statistic of the catalogue from raw arrays, in plain numpy float64.

The reference follows the written definitions, imports nothing of the package, and computes each value directly:
no shifted sums, no histograms, no merging.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

OWN = "ratioscope/"
RAW = "sampling/raw_importance_sampling_ratio/"
FRACTION = "sampling/frac_modified_importance_sampling_ratio"

LEVELS = ("token", "sequence")
QUANTILES = {
    "p001": 0.001,
    "p01": 0.01,
    "p05": 0.05,
    "p25": 0.25,
    "p50": 0.5,
    "p75": 0.75,
    "p95": 0.95,
    "p99": 0.99,
    "p999": 0.999,
}
LARGEST_LOG = math.log(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Rule:
    """A correction as four plain values."""

    level: Literal["token", "sequence"]
    action: Literal["truncate", "mask"]
    lower: float | None
    upper: float | None

    def outside(self, ratio: Array) -> tuple[Flags, Flags]:
        """Masks of the ratios below and above the bounds."""
        low = -math.inf if self.lower is None else float(np.float32(self.lower))
        high = math.inf if self.upper is None else float(np.float32(self.upper))
        return ratio < low, ratio > high

    def weights(self, ratio: Array) -> Array:
        """Ratios after the rule."""
        low, high = self.outside(ratio)
        if self.action == "mask":
            return np.where(low | high, 0.0, ratio)
        lowest = -math.inf if self.lower is None else float(np.float32(self.lower))
        highest = math.inf if self.upper is None else float(np.float32(self.upper))
        return np.minimum(np.maximum(ratio, lowest), highest)


@dataclass(frozen=True)
class Batch:
    """Raw arrays of one batch: ``(B, T)`` each, advantages ``(B,)``."""

    train: NDArray[np.float32]
    rollout: NDArray[np.float32]
    mask: Flags
    advantages: Array | None = None
    missing: Flags | None = None


@dataclass
class Answer:
    """Values that follow from the definitions.

    Attributes:
        values: statistics by full key.
        ranges: for quantiles, the interval that the histogram's accuracy allows, by full key.
    """

    values: dict[str, float] = field(default_factory=dict)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)

    def keys(self) -> set[str]:
        """Every key that has data."""
        return {*self.values, *self.ranges}


@dataclass
class _Kept:
    """Valid tokens and live rows of all batches."""

    d: list[Array] = field(default_factory=list)
    train: list[Array] = field(default_factory=list)
    rollout: list[Array] = field(default_factory=list)
    turns: list[NDArray[np.int64]] = field(default_factory=list)
    columns: list[NDArray[np.int64]] = field(default_factory=list)
    advantages: list[float | None] = field(default_factory=list)
    empty: int = 0
    masked_in: int = 0
    nan: int = 0
    infinite: int = 0
    positive: int = 0
    missing: int = 0


def answer(*batches: Batch, rule: Rule | None = None) -> Answer:
    """Every statistic of the batches, pooled."""
    kept = _Kept()
    for batch in batches:
        _keep(batch, kept)
    out = Answer()
    _counts(kept, rule, len(batches), out)
    if not kept.d:
        return out
    d = np.concatenate(kept.d)
    rows = np.array([math.fsum(row) for row in kept.d])
    lengths = np.array([len(row) for row in kept.d])
    for level, log_ratio in (("token", d), ("sequence", rows)):
        _level(level, log_ratio, rule, out)
    _tokens(d, np.concatenate(kept.train), np.concatenate(kept.rollout), out)
    _rows(kept, rows, lengths, out)
    _positions(kept, out)
    _alignment(kept, out)
    k = pareto_k(rows)
    if k is not None:
        out.values[f"{OWN}sequence/pareto_k"] = k
    if rule is not None:
        _rule(kept, rule, d, rows, lengths, out)
    at_mode = f"{OWN}{'token' if rule is None else rule.level}/"
    for name in ("min", "mean", "max"):
        out.values[RAW + name] = out.values[f"{at_mode}raw/{name}"]
    for name in ("p01", "p50", "p99"):
        out.ranges[f"{OWN}raw/{name}"] = out.ranges[f"{at_mode}raw/{name}"]
    out.values[f"{OWN}ess/raw"] = out.values[f"{at_mode}ess/raw"]
    out.values[f"{OWN}log_ratio/abs_mean"] = out.values[f"{OWN}token/log_ratio/abs_mean"]
    return out


def noise_floor(*pairs: tuple[Array, Array, Flags], abs_d: Array) -> dict[str, float]:
    """Statistics of the noise floor, from batches scored twice.

    Args:
        *pairs: second scoring, first scoring and mask of each batch, ``(B, T)`` each.
        abs_d: absolute log-ratios of the window's tokens.
    """
    d = np.concatenate([(again.astype(np.float64) - once.astype(np.float64))[mask] for again, once, mask in pairs])
    floor = np.abs(d).mean()
    values = {f"{OWN}noise_floor/{name}": value for name, value in (("abs_mean", floor), ("std", d.std()))}
    values[f"{OWN}noise_floor/max"] = np.abs(d).max()
    return values | ({f"{OWN}noise_floor/multiple": abs_d.mean() / floor} if floor else {})


def drift(*pairs: tuple[Array, Array, Flags], epsilon: tuple[float, float] | None) -> dict[str, float]:
    """Statistics of the policy's drift; each pair has current and old log-probabilities and the mask, ``(B, T)``."""
    e = np.concatenate([(current.astype(np.float64) - old.astype(np.float64))[mask] for current, old, mask in pairs])
    ratio = np.exp(e)
    values = {"mean": e.mean(), "abs_mean": np.abs(e).mean(), "k3": (ratio - 1.0 - e).mean()}
    values |= {"ratio_min": ratio.min(), "ratio_max": ratio.max()}
    if epsilon is not None:
        values["outside"] = np.mean((ratio < 1.0 - epsilon[0]) | (ratio > 1.0 + epsilon[1]))
    return {f"{OWN}drift/{name}": float(value) for name, value in values.items()}


def quantile_range(values: ArrayLike, q: float) -> tuple[float, float]:
    """Interval of a quantile whose two order statistics are known to 1/64 of themselves plus 2**-20."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    position = q * (len(ordered) - 1)
    below, above = ordered[math.floor(position)], ordered[math.ceil(position)]
    share = position - math.floor(position)
    exact = below + (above - below) * share
    slack = (1.0 - share) * abs(below) / 64 + share * abs(above) / 64 + 2.0**-20
    return float(exact - slack), float(exact + slack)


def _keep(batch: Batch, kept: _Kept) -> None:
    missing = np.zeros_like(batch.mask) if batch.missing is None else batch.missing
    for i, row in enumerate(batch.mask):
        d, train, rollout, turns, columns = [], [], [], [], []
        turn = 0
        for t in np.flatnonzero(row):
            kept.masked_in += 1
            turn += t == 0 or not row[t - 1]
            y, x = np.float32(batch.train[i, t]), np.float32(batch.rollout[i, t])
            if missing[i, t]:
                kept.missing += 1
            elif np.isnan(y) or np.isnan(x):
                kept.nan += 1
            elif np.isinf(y) or np.isinf(x):
                kept.infinite += 1
            elif x > 1e-4:
                kept.positive += 1
            else:
                d.append(float(y - x))
                train.append(float(y))
                rollout.append(float(x))
                turns.append(turn)
                columns.append(t)
        if not d:
            kept.empty += 1
            continue
        kept.d.append(np.array(d))
        kept.train.append(np.array(train))
        kept.rollout.append(np.array(rollout))
        kept.turns.append(np.array(turns))
        kept.columns.append(np.array(columns))
        kept.advantages.append(None if batch.advantages is None else float(batch.advantages[i]))


def _counts(kept: _Kept, rule: Rule | None, generations: int, out: Answer) -> None:
    tokens = sum(map(len, kept.d))
    log_ratios = [math.fsum(row) for row in kept.d] if rule is not None and rule.level == "sequence" else _flat(kept.d)
    out.values |= {
        f"{OWN}counts/tokens": tokens,
        f"{OWN}counts/rows": len(kept.d),
        f"{OWN}counts/rows_empty": kept.empty,
        f"{OWN}counts/nan": kept.nan,
        f"{OWN}counts/inf": kept.infinite,
        f"{OWN}counts/positive_logp": kept.positive,
        f"{OWN}counts/missing": kept.missing,
        f"{OWN}counts/zero_train_logp": sum(int((row == 0).sum()) for row in kept.train),
        f"{OWN}counts/zero_rollout_logp": sum(int((row == 0).sum()) for row in kept.rollout),
        f"{OWN}counts/overflow": sum(value > LARGEST_LOG for value in log_ratios),
        f"{OWN}counts/generations": generations,
    }
    if kept.masked_in:
        out.values[f"{OWN}tokens/invalid"] = 1.0 - tokens / kept.masked_in
    if kept.d or kept.empty:
        out.values[f"{OWN}rows/empty"] = kept.empty / (kept.empty + len(kept.d))


def _level(level: str, d: Array, rule: Rule | None, out: Answer) -> None:
    at = f"{OWN}{level}/"
    w = np.exp(d)
    share = w / w.sum()
    positive = share[share > 0]
    out.values |= {
        f"{at}raw/min": w.min(),
        f"{at}raw/mean": w.mean(),
        f"{at}raw/max": w.max(),
        f"{at}raw/std": w.std(),
        f"{at}log_ratio/mean": d.mean(),
        f"{at}log_ratio/std": d.std(),
        f"{at}log_ratio/min": d.min(),
        f"{at}log_ratio/max": d.max(),
        f"{at}log_ratio/abs_mean": np.abs(d).mean(),
        f"{at}log_ratio/abs_max": np.abs(d).max(),
        f"{at}ess/raw": _ess(w),
        f"{at}max_weight_share": share.max(),
        f"{at}perplexity": math.exp(-(positive * np.log(positive)).sum()) / len(d),
        f"{OWN}chi2/{level}": (w**2).mean() - 1.0,
    }
    for name, q in QUANTILES.items():
        out.ranges[f"{at}raw/{name}"] = quantile_range(d, q)
    if rule is not None and rule.level == level:
        weights = rule.weights(w)
        if weights.any():
            out.values[f"{at}ess/corrected"] = out.values[f"{OWN}ess/corrected"] = _ess(weights)


def _tokens(d: Array, train: Array, rollout: Array, out: Answer) -> None:
    r, p, q = np.exp(d), np.exp(train), np.exp(rollout)
    out.values |= {
        f"{OWN}kl/k1": -d.mean(),
        f"{OWN}kl/k2": (d**2).mean() / 2,
        f"{OWN}kl/k3": (np.expm1(d) - d).mean(),
        f"{OWN}kl/reverse_k3": (np.expm1(-d) + d).mean(),
        f"{OWN}outside/0.9_1.1": ((r < 0.9) | (r > 1.1)).mean(),
        f"{OWN}outside/0.5_2": ((r < 0.5) | (r > 2.0)).mean(),
        f"{OWN}mult_prob_error": np.exp(np.abs(d)).mean(),
        f"{OWN}probability/abs_mean": np.abs(p - q).mean(),
        f"{OWN}probability/abs_max": np.abs(p - q).max(),
    }
    if len(d) > 1 and np.ptp(train) > 0 and np.ptp(rollout) > 0:
        slope, intercept = np.polyfit(rollout, train, 1)
        out.values |= {
            f"{OWN}calibration/slope": slope,
            f"{OWN}calibration/intercept": intercept,
            f"{OWN}calibration/pearson": np.corrcoef(rollout, train)[0, 1],
            f"{OWN}alignment/lag_0": np.corrcoef(rollout, train)[0, 1],
            f"{OWN}probability/pearson": np.corrcoef(p, q)[0, 1],
        }
    if len(d) > 100:
        out.values[f"{OWN}identical"] = float(np.array_equal(train, rollout))


def _rows(kept: _Kept, rows: Array, lengths: NDArray[np.int64], out: Answer) -> None:
    at = f"{OWN}sequence/geometric/"
    per_token = rows / lengths
    geometric = np.exp(per_token)
    abs_mean = np.array([np.abs(row).mean() for row in kept.d])
    train = np.array([math.exp(-row.mean()) for row in kept.train])
    rollout = np.array([math.exp(-row.mean()) for row in kept.rollout])
    out.values |= {
        f"{at}mean": geometric.mean(),
        f"{at}min": geometric.min(),
        f"{at}max": geometric.max(),
        f"{OWN}row/abs_mean_max": abs_mean.max(),
        f"{OWN}row/over_1nat": (abs_mean > 1.0).mean(),
        f"{OWN}perplexity/train": train.mean(),
        f"{OWN}perplexity/rollout": rollout.mean(),
        f"{OWN}perplexity/ratio": (train / rollout).mean(),
    }
    for name in ("p05", "p50", "p95"):
        out.ranges[at + name] = quantile_range(per_token, QUANTILES[name])


def _rule(kept: _Kept, rule: Rule, d: Array, rows: Array, lengths: NDArray[np.int64], out: Answer) -> None:
    raw = np.exp(d if rule.level == "token" else rows)
    low, high = rule.outside(raw)
    weights = rule.weights(raw)
    fraction = (low | high).mean()
    out.values |= {
        FRACTION: fraction,
        f"{OWN}modified/fraction": fraction,
        f"{OWN}modified/low": low.mean(),
        f"{OWN}modified/high": high.mean(),
        f"{OWN}modified/truncated": fraction if rule.action == "truncate" else 0.0,
        f"{OWN}modified/masked": fraction if rule.action == "mask" else 0.0,
        f"{OWN}corrected/min": weights.min(),
        f"{OWN}corrected/mean": weights.mean(),
        f"{OWN}corrected/max": weights.max(),
    }
    by_row = np.split(low | high, np.cumsum(lengths)[:-1]) if rule.level == "token" else list((low | high)[:, None])
    _lengths(lengths, by_row, out)
    if any(advantage is None for advantage in kept.advantages):
        return
    advantages = np.array(kept.advantages, dtype=np.float64)
    advantages = np.repeat(advantages, lengths) if rule.level == "token" else advantages
    for sign, side in (("positive", advantages > 0), ("negative", advantages < 0)):
        if side.any():
            out.values[f"{OWN}modified/{sign}_advantage"] = (low | high)[side].mean()
    total = (np.abs(advantages) * raw).sum()
    if total:
        removed = (np.abs(advantages) * np.maximum(raw - weights, 0.0)).sum()
        out.values[f"{OWN}modified/gradient_removed"] = removed / total


def _positions(kept: _Kept, out: Answer) -> None:
    groups: dict[str, list[float]] = {}
    for d, turns in zip(kept.d, kept.turns, strict=True):
        for k, (value, turn) in enumerate(zip(d, turns, strict=True)):
            groups.setdefault(f"position/0{math.floor(10 * k / len(d))}", []).append(value)
            groups.setdefault(f"turn/{min(turn, 5)}", []).append(value)
        groups.setdefault("position/last", []).append(d[-1])
    single = all(turns.max() < 2 for turns in kept.turns)
    for place, values in groups.items():
        if not (single and place.startswith("turn")):
            out.values[f"{OWN}{place}/mean"] = float(np.mean(values))
            out.values[f"{OWN}{place}/abs_mean"] = float(np.abs(values).mean())


def _alignment(kept: _Kept, out: Answer) -> None:
    for lag in (-1, 1):
        pairs = [
            (y[at], x[columns.tolist().index(t + lag)])
            for y, x, columns in zip(kept.train, kept.rollout, kept.columns, strict=True)
            for at, t in enumerate(columns)
            if t + lag in columns
        ]
        if len(pairs) > 2 and all(np.ptp(side) > 0 for side in zip(*pairs, strict=True)):
            out.values[f"{OWN}alignment/lag_{lag}"] = np.corrcoef(*zip(*pairs, strict=True))[0, 1]


def _lengths(lengths: NDArray[np.int64], modified: list[Flags], out: Answer) -> None:
    """Splits completions into quarters by length; lengths of one bucket share the quarter of its middle completion."""
    steps = [max(2 ** math.floor(math.log2(n)) / 8, 1) for n in lengths]
    classes = np.array([n // step * step for n, step in zip(lengths, steps, strict=True)])
    quarters: dict[int, list[Flags]] = {}
    for value in np.unique(classes):
        middle = (classes < value).sum() + (classes == value).sum() / 2
        quarter = math.ceil(4 * middle / len(lengths))
        quarters.setdefault(quarter, []).extend(modified[i] for i in np.flatnonzero(classes == value))
    for quarter, flags in quarters.items():
        out.values[f"{OWN}length/q{quarter}/modified"] = float(np.concatenate(flags).mean())


def pareto_k(log_weights: Array) -> float | None:
    """Pareto k-hat straight from the weights: Zhang and Stephens' fit, with the prior of Vehtari et al. (2024)."""
    w = np.sort(np.exp(log_weights - log_weights.max()))
    m = int(min(0.2 * len(w), 3 * math.sqrt(len(w))))
    if len(w) < 25 or w[-m] == w[-1]:
        return None
    x = w[-m:] - w[-m - 1]
    if not x[int(m / 4 + 0.5) - 1]:
        return None
    j = 30 + int(math.sqrt(m))
    b = [1 / x[-1] + (1 - math.sqrt(j / (i - 0.5))) / (3 * x[int(m / 4 + 0.5) - 1]) for i in range(1, j + 1)]
    k = [float(np.mean(np.log1p(-theta * x))) for theta in b]
    log_likelihood = [m * (math.log(-theta / shape) - shape - 1) for theta, shape in zip(b, k, strict=True)]
    posterior = [1 / sum(math.exp(min(other - own, 700)) for other in log_likelihood) for own in log_likelihood]
    theta = sum(weight * value for weight, value in zip(posterior, b, strict=True)) / sum(posterior)
    return float((m * np.mean(np.log1p(-theta * x)) + 5) / (m + 10))


def _ess(w: Array) -> float:
    return float(w.sum() ** 2 / (len(w) * (w**2).sum())) if w.any() else 0.0


def _flat(rows: list[Array]) -> list[float]:
    return [float(value) for row in rows for value in row]
