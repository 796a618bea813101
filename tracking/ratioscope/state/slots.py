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

_LEVEL_SUMS = ("abs_d", "d", "excess", "w", "k3")
_LEVEL_PRODUCTS = ("d2", "excess2", "w2", "wd")
# d: log-ratio; excess, excess2: r - 1 and its square;
# w, w2, wd: exp(d - max d), its square, and its product with (d - max d).

DECILES = tuple(f"position/{decile:02}" for decile in range(10))
"""Tenths of a row's valid tokens, by position."""

TURNS = tuple(f"turn/{turn}" for turn in range(1, 6))
"""A row's runs of masked-in tokens; the last stands for the fifth and all later ones."""

PLACE_SUMS = tuple(f"{place}/{name}" for name in ("abs_d", "d") for place in (*DECILES, *TURNS, "position/last"))
"""What :mod:`ratioscope.summary.positions` adds up, in this order."""

PLACE_COUNTS = tuple(f"{place}/n" for place in (*DECILES, *TURNS, "position/last"))
"""Valid tokens of each place, in this order."""

LAG_SIDES = ("rollout/first", "train/first", "rollout/second", "train/second")
"""Log-probabilities of the two tokens of a pair of neighbours."""


SUMS: tuple[str, ...] = (
    *(f"token/{name}" for name in (*_LEVEL_SUMS, "reverse_k3", "mult_prob_error", *_LEVEL_PRODUCTS)),
    "logp/x",
    "logp/y",
    "probability/x",
    "probability/y",
    "logp/xx",
    "logp/yy",
    "probability/xx",
    "probability/yy",
    "logp/xy",
    "probability/xy",
    "probability/abs_difference",
    *(f"lag/{side}{power}" for power in ("", "^2") for side in LAG_SIDES),
    "lag/-1",
    "lag/1",
    *(f"sequence/{name}" for name in (*_LEVEL_SUMS, *_LEVEL_PRODUCTS)),
    "geometric/ratio",
    "perplexity/train",
    "perplexity/rollout",
    "perplexity/ratio",
    "corrected/w",
    "corrected/w2",
    "gradient/raw",
    "gradient/removed",
    *(f"noise/{name}" for name in ("d", "abs_d", "d2")),
    *(f"drift/{name}" for name in ("d", "abs_d", "k3")),
    *PLACE_SUMS,
    "normalizer/w",
)
"""Slots of one reduction are neighbours, in the order in which :mod:`ratioscope.summary` computes them."""

MAXIMA: tuple[str, ...] = (
    "token/max",
    "token/-min",
    "sequence/max",
    "sequence/-min",
    "geometric/max",
    "geometric/-min",
    "row/abs_mean_max",
    "corrected/max",
    "corrected/-min",
    "probability/abs_max",
    "noise/abs_max",
    "drift/max",
    "drift/-min",
    "generations",
)
"""Over ranks all of these are maxima; over time generations add, since each is seen by every rank."""

GENERATIONS = MAXIMA.index("generations")

COUNTS: tuple[str, ...] = (
    "masked_in",
    "missing",
    "nan",
    "inf",
    "positive_logp",
    "token/n",
    "equal",
    "zero_train_logp",
    "zero_rollout_logp",
    "token/overflow",
    "outside/0.9_1.1",
    "outside/0.5_2",
    "lag/n",
    "sequence/n",
    "rows_empty",
    "sequence/overflow",
    "row/over_1nat",
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
