"""Thresholds of the diagnosis, each with its reason.

A sign needs both size and certainty: size, because with a million tokens every difference is significant; certainty,
because with a hundred tokens a large difference happens by chance. The false-alarm and detection rates of all
thresholds together are measured by simulation (``docs/reference/diagnosis.md``).
"""

from __future__ import annotations

from ratioscope.runs.course import ABSURD_NATS, SINGLE_SHARE

FEWEST_FOR_SCATTER = 5
"""Fewest parts whose scatter is used as a standard error: with fewer, the scatter itself is too uncertain."""

FEWEST_TOKENS = 200
"""Fewest tokens from which means and slopes are judged: with fewer, one odd token decides the mean."""

CERTAIN = 6.0
"""Standard errors. Tokens of a completion depend on each other, so errors computed for independent tokens are up to
about twice too small; six of these are then three, one false alarm in a thousand."""

CLEAR, UNCLEAR = 8.0, 4.0
"""Standard errors of the mean ratio and the slope, whose terms have heavier tails; and those from which a deficit that
is not clear is not excluded either."""

# Sampling -------------------------------------------------------------------------------------------------------------

MASS_CUT, MASS_CUT_BAD = 0.005, 0.05
"""1 - mean ratio, for a warning and for an error: top_p 0.99 cuts about 0.005 of the mass. At 0.05, a hundred tokens
lose a factor of 150."""

LEAST_KEPT = 0.02
"""Kept mass of a single context below which truncation is not the cause: 20 of 5,000 tokens of a flat context keep 0.03
to 0.05; tokens that nobody sampled have less."""

CUT_NATS = 2.0
"""|d| up to which tokens must make the deficit of the mean ratio: beyond it are single tokens that nobody sampled."""

ONE_SIDED = 0.3
"""Largest 99th percentile of d at which values above 0 still count as noise; truncation only lowers d."""

WIDEST_SHIFT = 0.7
"""Standard deviation of d above which the mean ratio of a sample is no estimate of the expected ratio."""

LOG_FITS = (0.7, 1.5)
"""Range of mean |d| over -log(mean ratio) under truncation, where only these two means are known; noise leaves the mean
ratio at 1."""

SLOPE_OFF = 0.03
"""Difference of the calibration slope, and of the ratio of spreads, from 1: over contexts of mixed entropy, a
temperature of 0.9 moves both by 0.04 to 0.05, since between contexts the log-probabilities vary alike."""

SLOPE_PEARSON = 0.6
"""Correlation of both sides below which different tokens are compared, and a slope is meaningless; a temperature of 0.3
leaves 0.75."""

SCALE_UNEVEN = 10.0
"""Mean |d| of one tenth of the completions over another's from which the mismatch is not that of a temperature."""

SLOPE_BAD, FIRST_ON_POLICY = 0.1, 0.3
"""Difference of the slope from 1 from which a temperature is an error: temperatures below 0.8. And the share of that
difference up to which a first window is free of it: a temperature is there from the start, entropy under old weights
is not."""

MULTIPLE, NO_OFFSET, ALIKE = 0.15, 0.1, 0.9
"""Residual over the change that the slope makes, and offset over the same at the mean, up to which one side is a
multiple of the other, and least correlation; the first two are about 1 under a temperature, whose effect differs."""

GREEDY_SHARE, GREEDY_FLAT, UNLIKELY_SHARE, CUT_TO_ONE = 0.5, 0.05, 0.002, 0.7
"""Near temperature 0: share of the rollout's log-probabilities that are 0; share of tokens below exp(-0.7) = 0.5, which
a top_p above 0.5 does not leave alone; and most tokens beyond 5 nats, of which filled-in zeros have 0.5 to 15 %."""

SHIFT, SHIFT_OVER_SPREAD, DOWN_OVER_SPREAD, ALL_BELOW = 0.01, 2.5, 5.0, 0.99
"""Smallest constant shift in nats; its smallest multiple of the spread; the same for a downward shift, unless the
ratio's 99th percentile is below the last number. Noise has a multiple below 1; truncation shifts down by up to 3 times
its spread and leaves the ratios of peaked contexts at 1."""

# Values ---------------------------------------------------------------------------------------------------------------

MANY_MISSING = 0.05
"""Share of tokens without a usable log-probability from which the statistics no longer describe the batch."""

LOGITS = 0.01
"""Share of rollout values above 0 from which they are logits; fewer are corrupted memory."""

ZERO_SHARE = 0.003
"""Share by which exact zeros of the rollout exceed the trainer's: true certainty (p = 1) shows on both sides alike."""

ZERO_WRONG, ZERO_WRONG_SHARE = -2.0, 0.02
"""d at or below which a zero is wrong, and the share of the zeros that must be: zeros from rounding are within 0.01 of
the truth, and where truncation leaves a single token, its kept mass is above 0.15."""

ZERO_ALIKE, ZERO_ELSEWHERE = 0.5, 0.1
"""Trainer's mean log-probability at filled-in zeros over that of other tokens: about 1, since they stand on any token;
truncation leaves a token alone where it is near certain. And the share of other tokens that the comparison needs."""

PADDING_SHARE, PADDING_LEFT = 0.05, 0.25
"""Share of tokens with 0 on both sides, and mean |d| at the end of completions over that at their start, from which
padding is counted: tokens that are certain to both sides stand anywhere."""

FILLER_FACTOR, FILLER_OFFSET = 2.5, 1.0
"""How much less likely (times, plus nats) tokens with a zero are than sampled tokens, if they were never sampled:
padding and tool results typically have 5 to 15 nats, sampled tokens 0.3 to 1.5."""

# Positions ------------------------------------------------------------------------------------------------------------

LAG_AHEAD, LAG_LEAST = 0.3, 0.5
"""Excess of the correlation at lag 1 or -1 over that at lag 0, and its smallest value: log-probabilities of neighbours
correlate by 0.2 at most in text."""

LAG_WRONG, LAG_WRONG_SHARE = 0.3, 0.05
"""|d| in nats, and the share of tokens that must exceed it: a few absurd values destroy a correlation too."""

LAG_EXACT = 0.9999
"""Correlation at a lag that is certain for any number of tokens: equal values do not arise by chance."""

LAST_FACTOR, LAST_NATS, LAST_COMPLETIONS, LAST_SEVERAL = 5.0, 0.2, 8, 3.0
"""Mean |d| of last tokens as a multiple of the other tokens', and in nats; fewest completions; and the smallest
multiple of the largest |d| that all last tokens together must have, so that a single one cannot decide."""

LAST_SHARE = 0.6
"""Share of the last tenth's excess that the last token alone holds; below it, several tokens form a tail."""

TAIL_NATS, TAIL_MOST = ABSURD_NATS, 0.25
"""|d| that counts as absurd (a ratio above 148 or below 1/148), and the largest share of tokens that forms a tail."""

TAIL_FACTOR = 10.0
"""Mean |d| of the last tenth as a multiple of the other tenths'."""

TAIL_BEFORE = 0.3
"""Mean |d| of the last tenth but two over that of the last, from which the mismatch is not that of last tokens; three
tokens of a short completion fill two tenths."""

START_FACTOR, START_TOKENS = 5.0, 32
"""Mean |d| of the later tenths as a multiple of the earlier ones', and fewest tokens on each side: rounding errors that
accumulate along a completion double it at most, and penalties that grow with it reach 4."""

START_LEVEL = 2.0
"""Largest mean |d| of the earlier tenths over their smallest: before the position it does not grow."""

START_NATS, START_MOST = 0.01, 1.0
"""Mean |d| of the later tenths below which the mismatch does not matter, and above which tokens are none of the
engine's."""

ROW_NATS, ROW_MOST = 1.0, 0.9
"""Mean |d| of a completion that is paired with another one's, which the state counts; and the largest share of such
completions."""

ROW_TOKEN, ROW_SHARE, ROW_OTHERS, ROW_NEAR = 0.35, (0.4, 1.5), 0.8, 0.15
"""|d| of a wrong token; wrong tokens over the tokens of the wrong completions, of which another context makes 85 to
95 % wrong; and share of the other completions' tokens whose |d| must be below the last number, in nats."""

# Time and shape -------------------------------------------------------------------------------------------------------

FILL, FIRST_STEPS, BASELINE = 5, 6, 16
"""Windows in which the pipeline of an engine that is up to four steps behind fills; windows after a rise that decide
between a jump and growth; and most windows of the level before, so that an earlier rise that ended is not in it. The
first window of an asynchronous training is on-policy, so its mismatch is no level."""

JUMP_PARTS, GROWTH_PARTS = 4, 8
"""Fewest windows in which a jump, and growth since the start, are looked for: two on each side of a jump; and four
after a pipeline is full."""

RAISED, STEADY, LEAST_SCATTER = 0.22, 0.14, 0.05
"""Logarithms of the mismatch: least rise of all later windows above the level before, 1.25 times; largest rise within
that level, 1.15 times; and least standard deviation of a window, since a few windows show too little scatter by chance.
A learning rate that rises in a line from the start has at most 1.5 times the level after half as many windows again."""

JUMP_FACTOR, GROWTH_FACTOR, GROWTH_SOON = 3.0, 2.0, 1.6
"""Mismatch after a jump over before; after growth over before; and the latter where only two windows show it. Another
entropy or other data change the noise of an engine by up to 2 times in bfloat16 and 3.5 times in float32; reported
jumps were 5 to 20 times."""

SMALL_STEP, LEAP, NOISY, FRESH = 1.5, 8.0, 0.003, (0.75, 0.4, 0.1)
"""First raised window over the level before, below which a rise is growth; the same that no single step reaches where
that level has the noise of bfloat16, and mean |d| of such a noise; and how far the excess of the squared mismatch may
lie from that of steps in random directions, which is 1, 2, 3 ... times the first window's, towards a level, as a share
of the distance in logarithms. Weights that just stopped are at 0, weights five steps old at 0.3. Of the shares, the
first is for a first window below ``JUMP_FACTOR``, whose excess is uncertain, and the last for one that no step
reaches."""

GOES_ON = 1.25
"""Growth since the pipeline was full from which a mismatch does not level off; the last of four steps adds 1.1
times."""

DRIFTED, JUMPED, BY_DESIGN, BEYOND, EXCLUDED = 0.015, 0.025, 0.03, 0.125, 0.2
"""Mean |d| in nats below which growth after a steady level is information; the same for a jump, since other data alone
reach the noise of sharp contexts at once; and for growth since the start; the level from which the latter is a warning
whatever its shape; and the level that excludes healthy causes. Engines in bfloat16 with equal weights have 0.01;
healthy engines one to four steps behind reach 0.03 to 0.1, half of the last number, so a training that is known to be
synchronous is judged by that half."""

ONE_SIGN = 0.5
"""|mean d| over mean |d| of tokens of one sign: noise or old weights of a variance v have mean d = -v / 2, below 0.1 of
mean |d| where that is 0.1 nats."""

WARMUP_PARTS, WARMUP_POINTS, WARMUP_FITS = 12, 48, 0.75
"""Fewest windows and most points for the shape of growth since the start; and the misfit of a rising learning rate over
that of a straight line, below which it may be one. With a noise of 3 to 10 % a window, warmups of any length, one or
four steps old, are below 0.36 in 98 of 100 runs; weights that never arrive are above 1.2 in 95 of 100."""

NEWEST = 8
"""Most windows whose mean is the mismatch at the end."""

TAIL_CUTS = (0.35, 0.5, 0.7, 1.0, 1.4)
"""Cuts in nats between the core and the second mode of other experts."""

MODE_SHARE, MODE_TOKENS, MODE_CORE = (0.005, 0.3), 5, 6.0
"""Share of tokens in the second mode; fewest tokens in it; and how many times narrower the core (its 70th percentile)
is."""

MODE_ONE_SIDED, MODE_PLACE, MODE_UNEVEN = 0.95, 400, 3.0
"""Share of the second mode below 0 from which it is one-sided: tokens are drawn from the engine's distribution, so
other experts make 80 to 85 % less likely to the trainer, and tokens that nobody sampled are all less likely; fewest
tokens of a tenth that is compared; and largest mean |d| of a tenth over the smallest."""

OUTLIER_SHARE = SINGLE_SHARE
"""Largest share of absurd tokens that counts as single outliers."""

OUTLIERS_MATTER, OUTLIERS_SEVERAL, OUTLIER_ABSURD = 1e-4, 3, 15.0
"""Share and number of absurd tokens from which they are a warning; and the |d| from which a single one is: with enough
tokens, bfloat16 and mixtures of experts reach 5 nats now and then, and no rounding reaches 15."""

STAND_IN = -20.0
"""Log-probability of a single token at or below which a whole number stands for a missing value."""

UNRELATED = 0.5
"""Correlation of both sides below which other tokens or contexts are compared."""

RESET_FACTOR, RESETS, RESET_WINDOWS = 2.0, 2, 64
"""How many times the mismatch grows between syncs and falls at one; fewest syncs, evenly spaced; and the newest windows
that are looked at: in more of them one reset is missed by chance."""

FAR, FAR_QUANTIZED = 0.1, 0.3
"""Mean |d| in nats from which spread alone is a warning: engines in bfloat16 with equal weights have 0.01 to 0.04. And
the largest that precision explains where the engine's weights are quantized."""

AT_FLOOR = 2.0
"""Mean |d| in multiples of the noise floor up to which no engine could be nearer: two independent computations differ
by 1.4 times the error of each, and chunks are only one of the things that differ."""

SYMMETRIC = 0.25
"""|mean d| over its spread up to which d is symmetric, beyond half the variance, which a mean ratio of 1 implies."""

# Rule -----------------------------------------------------------------------------------------------------------------

COLLAPSE_NATS, COLLAPSE_SPREAD, COLLAPSE_ESS, COLLAPSE_COMPLETIONS = 3.0, 1.5, 0.1, 4
"""|mean D| from which sequence weights are 20 times off on average; spread of D from which exp(-spread^2), the
effective share that it predicts, is below 0.1; the measured effective share; and fewest completions."""
