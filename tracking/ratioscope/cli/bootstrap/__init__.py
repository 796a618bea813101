"""The folder that ``ratioscope run`` puts on a program's PYTHONPATH."""

from __future__ import annotations
