"""Either kind of rule, and a batch that either has corrected."""

from __future__ import annotations

from ratioscope.correction.bounded_batch import BoundedBatch
from ratioscope.correction.bounds import Correction
from ratioscope.correction.stage_pipeline import StagedBatch
from ratioscope.correction.staged import StagedCorrection

Rule = Correction | StagedCorrection
"""Rule that turns importance ratios into weights, by bounds or by stages: a frozen value, equal to a rule with the same
settings. Both kinds have the same interface."""

CorrectedBatch = BoundedBatch | StagedBatch
"""Effect of a rule on one batch. Tensors have the shape of the rule's level: ``(B, T)`` for tokens, ``(B, 1)`` for
sequences. Their values are meaningless where ``valid`` is False."""
