"""What caused a mismatch: causes read off a run's records, each with evidence, confidence and a remedy.

A cause that could not be looked for is listed as not checked, which is never the same as clean.
"""

from __future__ import annotations

from ratioscope.diagnosis.causes import CAUSES, diagnose
from ratioscope.diagnosis.findings import Cause, Diagnosis, Finding, NotChecked, Sign, Unchecked
from ratioscope.diagnosis.pool import Pool
from ratioscope.diagnosis.run import Run

__all__ = ["CAUSES", "Cause", "Diagnosis", "Finding", "NotChecked", "Pool", "Run", "Sign", "Unchecked", "diagnose"]
