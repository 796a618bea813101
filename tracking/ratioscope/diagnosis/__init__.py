"""Diagnosis of a run: causes of a mismatch, each with evidence, confidence and a remedy.

A cause that could not be checked is listed as not checked, which does not mean clean.
"""

from __future__ import annotations

from ratioscope.diagnosis.cause import Cause
from ratioscope.diagnosis.causes import CAUSES
from ratioscope.diagnosis.evaluate import diagnose
from ratioscope.diagnosis.findings import Diagnosis, Finding, NotChecked, Sign, Unchecked
from ratioscope.diagnosis.pool import Pool
from ratioscope.diagnosis.run import Run

__all__ = ["CAUSES", "Cause", "Diagnosis", "Finding", "NotChecked", "Pool", "Run", "Sign", "Unchecked", "diagnose"]
