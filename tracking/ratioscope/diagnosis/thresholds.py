"""Every threshold of the diagnosis, each with its reason.

A statistic needs both size and certainty: size, because with a million tokens everything is significant; certainty,
because with a hundred everything is large once. The false-alarm and detection rates that they give together are
measured by simulation (``docs/reference/diagnosis.md``).
"""

from __future__ import annotations

FEWEST_FOR_SCATTER = 5
"""Parts whose scatter is used as a standard error: with fewer it is worth nothing itself."""

FEWEST_TOKENS = 200
"""Tokens from which means and slopes are judged: with fewer one odd token is the mean."""

CERTAIN = 6.0
"""Standard errors. Tokens of a row depend on each other, so that errors of independent tokens are up to about twice
too small; six of these are then three, one false alarm in a thousand."""

CLEAR = 8.0
"""Standard errors of the mean ratio and the slope, whose terms have heavier tails."""

# Sampling -------------------------------------------------------------------------------------------------------------

MASS_CUT, MASS_CUT_BAD = 0.005, 0.05
"""1 - mean ratio: top_p 0.99 cuts about 0.005 of the mass. From 0.05 on a hundred tokens lose a factor of 150."""

LEAST_KEPT = 0.15
"""Kept mass of a single context below which truncation is not the cause: top_p below 0.15 is used by nobody."""

ONE_SIDED = 0.3
"""The 99th percentile of d up to which the upper side counts as noise; truncation only ever lowers d."""

WIDEST_SHIFT = 0.7
"""Spread of d (standard deviation) above which the mean ratio of a sample says nothing of the expected one."""

LOG_FITS = (0.7, 1.5)
"""Mean |d| over -log(mean ratio) that truncation leads to where only these two are known; noise leaves
the mean ratio at 1."""

SLOPE_OFF = 0.05
"""Distance of the calibration slope from 1: noise of 0.1 nats moves it by 0.02, a temperature of 0.9 by 0.1."""

SLOPE_FOLLOWS = 0.35
"""Correlation of d with the rollout's log-probability: temperature makes one a function of the other."""

SLOPE_PEARSON = 0.8
"""Correlation of both sides below which other tokens are compared, and a slope means nothing."""

SHIFT, SHIFT_OVER_SPREAD, DOWN_OVER_SPREAD, ALL_BELOW = 0.01, 2.5, 5.0, 0.99
"""A constant shift in nats, and how many times its spread; the latter downwards, unless the ratio's 99th percentile is
below the last number. That of noise is below 1; truncation shifts down by up to 3 times its spread, and leaves the
ratios of peaked contexts at 1."""

# Values ---------------------------------------------------------------------------------------------------------------

MANY_MISSING = 0.05
"""Share of tokens without a usable log-probability from which the batch is another one than it seems."""

LOGITS = 0.01
"""Share of rollout values above 0 from which they are logits; a few are corrupted memory."""

ZERO_SHARE = 0.003
"""Share by which exact zeros of the rollout exceed the trainer's: real certainty (p = 1) shows on both sides alike."""

ZERO_WRONG, ZERO_WRONG_SHARE = -2.0, 0.02
"""d at or below which a zero is wrong, and the share of the zeros that must be: zeros that come of rounding are
within 0.01 of the truth, and where truncation leaves a single token, its kept mass is above 0.15."""

FILLER_FACTOR, FILLER_OFFSET = 2.5, 1.0
"""How much less likely than sampled tokens (times, plus nats) those with a zero must be to be no sampled ones: padding
and tool results are typically 5 to 15 nats, sampled tokens 0.3 to 1.5."""

# Places ---------------------------------------------------------------------------------------------------------------

LAG_AHEAD, LAG_LEAST = 0.3, 0.5
"""By how much, and to what, the correlation at lag 1 or -1 must exceed that at 0: neighbours' log-probabilities
correlate by 0.2 at most in text."""

LAG_WRONG, LAG_WRONG_SHARE = 0.3, 0.05
"""A distance in nats, and the share of tokens that must be beyond it: a few absurd values destroy a correlation too."""

LAG_EXACT = 0.9999
"""Correlation at a lag that needs no number of tokens: equal values do not come by chance."""

LAST_FACTOR, LAST_NATS, LAST_ROWS, LAST_SEVERAL = 5.0, 0.2, 8, 3.0
"""How many times the others' distance, how many nats, and over how many rows the last token must be off; and how many
times the largest |d| all last tokens together must be, lest a single one be all."""

LAST_SHARE = 0.6
"""Share of the last tenth's excess that the last token must hold by itself: else it is a tail of several tokens."""

TAIL_NATS, TAIL_MOST = 5.0, 0.25
"""What counts as absurd (a ratio above 148 or below 1/148) and the share of tokens up to which it is a tail."""

TAIL_FACTOR = 10.0
"""How many times the other tenths' distance the last tenth must be."""

START_FACTOR, START_TOKENS = 3.0, 32
"""How many times the earlier tenths' distance the later ones must be, and tokens on each side: rounding errors that
accumulate along a row double it at most."""

START_NATS = 0.01
"""Distance in the later tenths below which nobody need care."""

ROW_NATS, ROW_MOST, ROW_BETWEEN = 1.0, 0.9, 0.34
"""Mean d of a row that belongs elsewhere, the largest share of such rows, and how many rows are neither here (below a
quarter of it) nor there, as a share of the fewer of both: a mixture has few."""

# Policy ---------------------------------------------------------------------------------------------------------------

JUMP_FACTOR, JUMP_APART, JUMP_SHARE, JUMP_PARTS = 3.0, 2.0, 0.5, 4
"""Mean distance after over before; smallest after over largest before; share of the whole range in one step; and
parts needed. Reported cases jumped 5 to 20 times; the third number parts a jump from growth."""

GROWTH_FACTOR, GROWTH_PARTS, GROWTH_TAU = 2.0, 6, 0.6
"""Last third over first; parts needed; Kendall's correlation with time. A drift of entropy alone stays below 2."""

LEVELLED, LEVELLED_FACTOR = 0.75, 3.0
"""Share of the last third's distance that ends the climb of a run that levels off, and how many times the first
tenth's it must be: the distance to weights that never arrive stops growing, often within the first third."""

TAIL_CUTS = (0.35, 0.5, 0.7, 1.0, 1.4)
"""Cuts in nats between the core and the second mode of other experts."""

MODE_SHARE, MODE_TOKENS, MODE_CORE = (0.005, 0.3), 5, 6.0
"""Share of tokens in the second mode, tokens in it, and how many times narrower the core (its 70th percentile) is."""

OUTLIER_SHARE = 0.01
"""Share of absurd tokens up to which they are single ones."""

STRANGERS = 0.5
"""Correlation of both sides below which other tokens or contexts are compared."""

RESET_FACTOR, RESETS = 2.0, 2
"""How many times the distance grows between syncs and falls at one; how many of these, evenly spaced, are needed."""

FAR = 0.1
"""Mean |d| in nats from which spread alone is a warning: engines in bfloat16 that hold the same weights are 0.01 to
0.04 apart."""

SYMMETRIC = 0.25
"""|mean d| over its spread up to which d is symmetric, beyond what a mean ratio of 1 asks for (half the variance)."""

# Rule -----------------------------------------------------------------------------------------------------------------

COLLAPSE_NATS, COLLAPSE_SPREAD, COLLAPSE_ESS, COLLAPSE_ROWS = 3.0, 1.5, 0.1, 4
"""|mean D| from which sequence weights are off by 20 times on the average; spread of D from which exp(-spread^2), the
effective share that it predicts, is below 0.1; the same share as measured; rows needed."""
