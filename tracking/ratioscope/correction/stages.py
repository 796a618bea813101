"""Stages of a rule, and the names of the counts that they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from ratioscope.correction.checks import check_choice, checked_bound, listed

if TYPE_CHECKING:
    from collections.abc import Mapping

CLASSES = ("kept", "truncated_high", "truncated_low", "zeroed", "dropped", "vetoed", "clamped")
"""Classes of valid tokens after the stages: each token is in exactly one, so they add up to ``token/n``."""

MAX_STAGES = 4
"""Largest number of stages of a rule."""

STAGE_COUNTS: tuple[str, ...] = (
    *(
        f"stage/{stage}/{unit}_{side}"
        for stage in range(1, MAX_STAGES + 1)
        for unit in ("tokens", "rows")
        for side in ("low", "high")
    ),
    "safety_clamp/tokens",
    "safety_clamp/rows",
    *(f"class/{name}" for name in CLASSES),
)
"""Counts of a rule of stages, in this order: tokens and rows outside each stage's bounds, tokens and rows that the
safety clamp reaches, and tokens by class. All 0 under bounds."""

Weight = Literal["token", "sequence", "geometric", "segment", "one"]
"""Weight of a token before any stage: its ratio; the product of its sequence's ratios, their geometric mean, or that
over its run of masked-in tokens; 1, where the stages only reject."""

WEIGHT_LEVELS = {"token": "token", "sequence": "product", "geometric": "geometric", "segment": "segment"}
"""Level of the ratio that each weight is, at which a stage can truncate it; a weight of 1 has none."""

Statistic = Literal[
    "ratio",
    "k1",
    "k2",
    "k3",
    "reversed_k3",
    "binary_kl",
    "probability_difference",
    "abs_probability_difference",
    "total_variation",
    "squared_gap",
    "mult_prob_error",
]
"""Statistic that a stage compares. With l the log-ratio, r = exp(l), p and q the trainer's and the rollout's
probability: r; -l; l^2/2; r - 1 - l; 1/r - 1 + l; the larger KL divergence of two coins that show heads with p and with
q; p - q; |p - q|; |r - 1|; l^2; exp|l|."""

StageLevel = Literal["token", "product", "geometric", "sum", "mean", "max", "segment", "any"]
"""Level that one value belongs to. ``token``: the token. Of the ratio over a row: ``product`` and ``geometric`` mean.
Of the others over a row: ``sum`` and ``mean``. ``segment``: the geometric mean of the ratio, or the mean of another,
over a run of masked-in tokens, such as a turn. Of any: ``max`` over the row, and ``any``, by which one token outside
the bounds decides for its whole row."""

StageAction = Literal["truncate", "zero", "drop"]
"""Action on tokens outside the bounds. ``truncate`` clamps the weight. ``zero`` sets it to 0, and the loss still
divides by the token. ``drop`` takes the token out of the mask, so that the loss does not."""

Side = Literal["both", "positive", "negative", "outward"]
"""Tokens that a stage acts on: all; those of rows with an advantage above, below 0; those whose update would take the
ratio further from 1, advantage * l > 0."""

OF_RATIO = frozenset({"token", "product", "geometric", "max", "segment", "any"})
OF_OTHERS = frozenset({"token", "sum", "mean", "max", "segment", "any"})
NONNEGATIVE = frozenset(get_args(Statistic)) - {"k1", "probability_difference"}


@dataclass(frozen=True)
class Stage:
    """Stage of a rule: keeps values in ``[lower, upper]``, both included, and acts on the others.

    Attributes:
        statistic: the statistic compared, one of :data:`Statistic`.
        level: level of one value, one of :data:`StageLevel`.
        action: ``"truncate"``, ``"zero"`` or ``"drop"``.
        lower: smallest value that is kept; None for no lower bound.
        upper: largest value that is kept; None for no upper bound.
        advantage: tokens that the stage acts on, one of :data:`Side`.
        name: name in reports; None to describe the stage instead.

    Raises:
        ValueError: if a choice is unknown, the level does not go with the statistic, no bound is given, a bound is no
            finite number or no value can lie within the bounds, or anything but a ratio is truncated.
    """

    statistic: Statistic
    level: StageLevel
    action: StageAction
    lower: float | None = None
    upper: float | None = None
    advantage: Side = "both"
    name: str | None = None

    def __post_init__(self) -> None:
        check_choice("statistic", self.statistic, get_args(Statistic))
        check_choice("level", self.level, get_args(StageLevel))
        check_choice("action", self.action, get_args(StageAction))
        check_choice("advantage", self.advantage, get_args(Side))
        levels = OF_RATIO if self.statistic == "ratio" else OF_OTHERS
        if self.level not in levels:
            msg = f"got level={self.level!r} of statistic={self.statistic!r}; expected one of {listed(sorted(levels))}"
            raise ValueError(msg)
        for name in ("lower", "upper"):
            object.__setattr__(self, name, checked_bound(name, getattr(self, name)))
        if self.lower is None and self.upper is None:
            msg = "got a stage without a bound, which changes nothing; give lower, upper or both"
            raise ValueError(msg)
        if self.lower is not None and self.upper is not None and self.lower > self.upper:
            msg = f"got lower={self.lower} and upper={self.upper}; expected lower <= upper. Swap them or drop one."
            raise ValueError(msg)
        if self.statistic in NONNEGATIVE and self.upper is not None and self.upper < 0:
            msg = f"got upper={self.upper} of {self.statistic}, which is never below 0; expected a bound >= 0"
            raise ValueError(msg)
        if self.action == "truncate" and (self.statistic != "ratio" or self.level in {"max", "any"}):
            msg = f"got a truncation of {self.statistic} at level {self.level!r}; expected the ratio that the weight is"
            raise ValueError(msg)
        if self.action == "truncate" and self.advantage != "both":
            msg = 'got a truncation by advantage; expected advantage="both", or an action of "zero" or "drop"'
            raise ValueError(msg)

    @property
    def of_rows(self) -> bool:
        """True if the stage decides for whole rows."""
        return self.level not in {"token", "segment"}

    def words(self) -> str:
        """Describes the stage in a few words, such as ``"zeroes tokens with ratio outside [0.5, 5]"``."""
        verb = {"truncate": "truncates", "zero": "zeroes", "drop": "drops"}[self.action]
        what = "rows" if self.of_rows else "segments" if self.level == "segment" else "tokens"
        if self.advantage == "outward":
            what = "tokens pushed outward" + (f" in {what}" if self.level != "token" else "")
        elif self.advantage != "both":
            what += f" of {self.advantage} advantage"
        statistic = self.statistic.replace("_", " ")
        of = {
            "any": f"any token's {statistic}",
            "max": f"largest {statistic}",
            "geometric": "geometric mean ratio",
            "segment": f"mean {statistic}",
            "product": "product of ratios",
            "sum": f"sum of {statistic}",
            "mean": f"mean of {statistic}",
        }.get(self.level, statistic)
        if self.statistic == "ratio" and self.level == "segment":
            of = "geometric mean ratio"
        if self.lower is None:
            where = f"above {self.upper:g}"
        elif self.upper is None:
            where = f"below {self.lower:g}"
        else:
            where = f"outside [{self.lower:g}, {self.upper:g}]"
        return f"{verb} {what} with {of} {where}"

    def to_json(self) -> dict[str, Any]:
        """Returns all fields as plain JSON."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Stage:
        """Reads what :meth:`to_json` wrote."""
        return cls(**data)
