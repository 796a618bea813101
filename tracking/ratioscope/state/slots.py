"""Names and positions of a summary's slots. Their order is the wire format between ranks of one run."""

from __future__ import annotations

from ratioscope.correction.stages import STAGE_COUNTS

N_LOG_RATIOS = 256
N_TOKENS = 32
N_ROWS = 8
"""Rows of the three tables of the largest values."""

SPREAD = 0x3C6EF373
"""Distance, in 32-bit integers, between consecutive positions of a completion in the order of ties."""

LEVELS = ("token", "sequence")
"""A ratio belongs to a token, or to a row with at least one valid token."""

HISTOGRAMS = ("token_log_ratio", "sequence_log_ratio", "geometric_log_ratio", "corrected_log_ratio")
"""The last is of the weights after the rule, at the rule's level; masked weights have no logarithm and are left out."""

_LEVEL_SUMS = ("d", "abs_d", "d2", "k3", "excess", "excess2", "w", "w2", "wd")
# d: log-ratio; excess, excess2: r - 1 and its square;
# w, w2, wd: exp(d - max d), its square, and its product with (d - max d).

DECILES = tuple(f"position/{decile:02}" for decile in range(10))
"""Tenths of a row's valid tokens, by position."""

TURNS = tuple(f"turn/{turn}" for turn in range(1, 6))
"""A row's runs of masked-in tokens; the last stands for the fifth and all later ones."""

PLACE_SUMS = tuple(f"{place}/{name}" for name in ("d", "abs_d") for place in (*DECILES, *TURNS, "position/last"))
"""What :mod:`ratioscope.summary.positions` adds up, in this order."""

PLACE_COUNTS = tuple(f"{place}/n" for place in (*DECILES, *TURNS, "position/last"))
"""Valid tokens of each place, in this order."""

LAG_SIDES = ("train/first", "train/second", "rollout/first", "rollout/second")
"""Log-probabilities of the two tokens of a pair of neighbours."""


SUMS: tuple[str, ...] = (
    *(f"{level}/{name}" for level in LEVELS for name in _LEVEL_SUMS),
    "token/reverse_k3",
    "token/mult_prob_error",
    "geometric/ratio",
    "corrected/w",
    "corrected/w2",
    "gradient/raw",
    "gradient/removed",
    "logp/x",
    "logp/y",
    "logp/xx",
    "logp/yy",
    "logp/xy",
    "probability/x",
    "probability/y",
    "probability/xx",
    "probability/yy",
    "probability/xy",
    "probability/abs_difference",
    "perplexity/train",
    "perplexity/rollout",
    "perplexity/ratio",
    *(f"lag/{side}{power}" for power in ("", "^2") for side in LAG_SIDES),
    "lag/1",
    "lag/-1",
    *(f"noise/{name}" for name in ("d", "abs_d", "d2")),
    *(f"drift/{name}" for name in ("d", "abs_d", "k3")),
    *PLACE_SUMS,
    "normalizer/w",
)

MAXIMA: tuple[str, ...] = (
    "token/max",
    "token/-min",
    "sequence/max",
    "sequence/-min",
    "geometric/max",
    "geometric/-min",
    "corrected/max",
    "corrected/-min",
    "probability/abs_max",
    "row/abs_mean_max",
    "noise/abs_max",
    "drift/max",
    "drift/-min",
    "generations",
)
"""Over ranks all of these are maxima; over time generations add, since each is seen by every rank."""

GENERATIONS = MAXIMA.index("generations")

COUNTS: tuple[str, ...] = (
    "token/n",
    "sequence/n",
    "rows_empty",
    "masked_in",
    "nan",
    "inf",
    "positive_logp",
    "missing",
    "token/overflow",
    "sequence/overflow",
    "outside/0.9_1.1",
    "outside/0.5_2",
    "row/over_1nat",
    "equal",
    "zero_train_logp",
    "zero_rollout_logp",
    "lag/n",
    "corrected/n",
    "modified/low",
    "modified/high",
    "positive_advantage/n",
    "positive_advantage/modified",
    "negative_advantage/n",
    "negative_advantage/modified",
    "disagreements",
    "errors",
    "noise/n",
    "drift/n",
    "drift/clippable",
    "drift/outside",
    *PLACE_COUNTS,
    *STAGE_COUNTS,
    "dropped/n",
    "normalizer/n",
)
