"""Trainers that ratioscope attaches to, one package each."""

from __future__ import annotations
