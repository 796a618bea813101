"""Trainers whose importance ratios ratioscope can watch, one module each."""

from __future__ import annotations
