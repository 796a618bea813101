"""Independent reference for rules of stages: applies stages to raw arrays, token by token, in Python and float64.

It follows the written definitions and imports nothing of the package.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tests.support.reference import Batch

OWN = "ratioscope/"
CLASSES = ("vetoed", "dropped", "zeroed", "truncated_high", "truncated_low", "clamped")


@dataclass(frozen=True)
class PlainStage:
    """A stage as plain values."""

    statistic: str
    level: str
    action: str
    lower: float | None
    upper: float | None
    advantage: str = "both"


@dataclass(frozen=True)
class PlainRule:
    """A general rule as plain values."""

    stages: tuple[PlainStage, ...]
    weight: str = "token"
    log_clamp: float | None = None
    batch_normalize: bool = False
    clamp_tokens: bool = False


@dataclass
class Token:
    """A valid token: log-ratio, both log-probabilities, segment, completion, and the outcome of the stages."""

    l: float  # noqa: E741
    train: float
    rollout: float
    segment: int
    row: int
    advantage: float
    raw: float = 1.0
    weight: float = 1.0
    dropped: bool = False
    zeroed: bool = False
    vetoed: bool = False
    cut: set[str] = field(default_factory=set)
    clamped: bool = False
    sides: list[str] = field(default_factory=list)
    full: float = 1.0

    @property
    def fate(self) -> str:
        """Class of the token; each token has exactly one."""
        if self.vetoed and (self.dropped or self.zeroed):
            return "vetoed"
        for name, member in (
            ("dropped", self.dropped),
            ("zeroed", self.zeroed),
            ("truncated_high", "high" in self.cut),
            ("truncated_low", "low" in self.cut),
            ("clamped", self.clamped),
        ):
            if member:
                return name
        return "kept"


def tokens_of(*batches: Batch) -> list[list[Token]]:
    """Valid tokens of every live row, of all batches in order."""
    rows: list[list[Token]] = []
    for batch in batches:
        for i, mask in enumerate(batch.mask):
            row: list[Token] = []
            segment = 0
            for t in np.flatnonzero(mask):
                segment += t == 0 or not mask[t - 1]
                y, x = np.float32(batch.train[i, t]), np.float32(batch.rollout[i, t])
                if not np.isfinite(y) or not np.isfinite(x) or x > 1e-4:
                    continue
                advantage = math.nan if batch.advantages is None else float(batch.advantages[i])
                row.append(Token(float(y - x), float(y), float(x), segment, len(rows), advantage))
            if row:
                rows.append(row)
    return rows


def statistic(name: str, token: Token, clamp: float) -> float:
    """Statistic of a token, computed from its clamped log-ratio."""
    l = min(max(token.l, -clamp), clamp)  # noqa: E741
    p, q = math.exp(token.train), math.exp(token.rollout)
    if name == "binary_kl":
        p, q = (min(max(side, 1e-12), 1 - 1e-12) for side in (p, q))
        forward = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
        return max(forward, p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q)))
    return {
        "ratio": math.exp(l),
        "k1": -l,
        "k2": l * l / 2,
        "k3": math.exp(l) - 1 - l,
        "reversed_k3": math.exp(-l) - 1 + l,
        "probability_difference": p - q,
        "abs_probability_difference": abs(p - q),
        "total_variation": abs(math.exp(l) - 1),
        "squared_gap": l * l,
        "mult_prob_error": math.exp(abs(l)),
    }[name]


def values(stage: PlainStage, row: Sequence[Token], clamp: float, *, clamp_tokens: bool = False) -> list[float]:
    """The statistic at the stage's level, for each token of a row."""
    found = [statistic(stage.statistic, token, clamp) for token in row]
    if stage.level in {"token", "any"}:
        return found
    groups = [[k] for k in range(len(row))]
    if stage.level == "segment":
        groups = [[k for k, other in enumerate(row) if other.segment == token.segment] for token in row]
    else:
        groups = [list(range(len(row)))] * len(row)
    out = []
    for group in groups:
        if stage.statistic == "ratio":
            logs = [row[k].l for k in group]
            if clamp_tokens and stage.level == "geometric":
                logs = [min(max(log, -clamp), clamp) for log in logs]
            if stage.level == "max":
                total = max(logs)
            else:
                total = math.fsum(logs) / (1 if stage.level == "product" else len(group))
            out.append(math.exp(min(max(total, -clamp), clamp)))
        elif stage.level == "max":
            out.append(max(found[k] for k in group))
        else:
            total = math.fsum(found[k] for k in group)
            out.append(total if stage.level == "sum" else total / len(group))
    return out


def hits(stage: PlainStage, row: Sequence[Token], clamp: float, *, clamp_tokens: bool) -> list[str]:
    """For each token ``"low"``, ``"high"`` or nothing."""
    low = -math.inf if stage.lower is None else stage.lower
    high = math.inf if stage.upper is None else stage.upper
    statistics = values(stage, row, clamp, clamp_tokens=clamp_tokens)
    found = ["high" if value > high else "low" if value < low else "" for value in statistics]
    if stage.level == "any":
        found = [max(found, key=["", "low", "high"].index)] * len(row)
    acts = {
        "both": lambda token: True,
        "positive": lambda token: token.advantage > 0,
        "negative": lambda token: token.advantage < 0,
        "outward": lambda token: token.advantage * token.l > 0,
    }[stage.advantage]
    return [side if acts(token) else "" for side, token in zip(found, row, strict=True)]


def weigh(rule: PlainRule, row: Sequence[Token]) -> list[list[str]]:
    """Applies the rule to a row; returns the side that each token crossed, by stage."""
    clamp = math.inf if rule.log_clamp is None else rule.log_clamp
    for token in row:
        group = [token]
        if rule.weight in {"sequence", "geometric"}:
            group = list(row)
        elif rule.weight == "segment":
            group = [other for other in row if other.segment == token.segment]
        log = math.fsum(other.l for other in group) / (1 if rule.weight == "sequence" else len(group))
        log = 0.0 if rule.weight == "one" else log
        token.raw = math.exp(log)
        end = min(max(log, -clamp), clamp)
        token.clamped = abs(log) > clamp
        if rule.clamp_tokens and rule.weight == "geometric":
            end = math.fsum(min(max(other.l, -clamp), clamp) for other in group) / len(group)
            token.clamped = any(abs(other.l) > clamp for other in group)
        token.weight = math.exp(end)
        token.sides = ["high"] if token.clamped and log > end else []
    every = [hits(stage, row, clamp, clamp_tokens=rule.clamp_tokens) for stage in rule.stages]
    for stage, found in zip(rule.stages, every, strict=True):
        for token, side in zip(row, found, strict=True):
            if side:
                token.sides.append(side)
            if stage.action == "truncate":
                if token.zeroed and stage.lower:
                    token.zeroed = False
                    token.cut.add("low")
                token.weight = max(token.weight, -math.inf if stage.lower is None else stage.lower)
                token.weight = min(token.weight, math.inf if stage.upper is None else stage.upper)
                if side:
                    token.cut.add(side)
            elif side:
                token.vetoed |= stage.level == "any"
                if stage.action == "drop":
                    token.dropped = True
                else:
                    token.weight, token.zeroed = 0.0, True
    for token in row:
        token.full, token.weight = token.weight, 0.0 if token.dropped else token.weight
    return every


def account(rule: PlainRule, *batches: Batch) -> dict[str, float]:
    """Every statistic that depends on stages, by full key."""
    rows = tokens_of(*batches)
    found = [weigh(rule, row) for row in rows]
    tokens = [token for row in rows for token in row]
    n = len(tokens)
    out: dict[str, float] = {}
    if not n:
        return out
    for name in CLASSES:
        out[f"{OWN}modified/{name}"] = sum(token.fate == name for token in tokens) / n
    changed = [token for token in tokens if token.fate != "kept"]
    out[f"{OWN}modified/fraction"] = len(changed) / n
    out[f"{OWN}modified/high"] = sum("high" in token.sides for token in changed) / n
    out[f"{OWN}modified/low"] = sum("high" not in token.sides for token in changed) / n
    out[f"{OWN}modified/truncated"] = sum(token.fate.startswith("truncated") for token in tokens) / n
    out[f"{OWN}modified/masked"] = sum(token.fate in {"vetoed", "dropped", "zeroed"} for token in tokens) / n
    out[f"{OWN}safety_clamp/tokens"] = sum(token.clamped for token in tokens) / n
    out[f"{OWN}safety_clamp/rows"] = sum(any(token.clamped for token in row) for row in rows) / len(rows)
    for k in range(len(rule.stages)):
        at = f"{OWN}stage/{k + 1}/"
        flat = [side for every in found for side in every[k]]
        out[f"{at}modified"] = sum(side != "" for side in flat) / n
        for side in ("low", "high"):
            out[at + side] = flat.count(side) / n
            out[f"{at}rows_{side}"] = sum(side in every[k] for every in found) / len(rows)
    total = sum(abs(token.advantage) * token.raw for token in tokens)
    if total:
        removed = sum(abs(token.advantage) * max(token.raw - token.weight, 0.0) for token in tokens)
        out[f"{OWN}modified/gradient_removed"] = removed / total
    kept = np.array([token.weight for token in tokens if not token.dropped])
    if not kept.size:
        return out
    scale = 1.0
    if rule.batch_normalize:
        by_row = rule.weight in {"sequence", "geometric"}
        means = [float(np.mean([token.full for token in row])) for row in rows]
        scale = 1 / (np.mean(means if by_row else [token.full for token in tokens]) or 1.0)
    out |= {
        f"{OWN}corrected/min": kept.min() * scale,
        f"{OWN}corrected/mean": kept.mean() * scale,
        f"{OWN}corrected/max": kept.max() * scale,
    }
    out[f"{OWN}ess/corrected"] = kept.sum() ** 2 / (len(kept) * (kept**2).sum()) if kept.any() else 0.0
    return out


def weights_of(rule: PlainRule, batch: Batch) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Returns the weight of each valid token in order, and whether the loss divides by it."""
    rows = tokens_of(batch)
    for row in rows:
        weigh(rule, row)
    tokens = [token for row in rows for token in row]
    return np.array([token.weight for token in tokens]), np.array([not token.dropped for token in tokens])
