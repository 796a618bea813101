"""What ``ratioscope run`` has Python start with."""

from __future__ import annotations
