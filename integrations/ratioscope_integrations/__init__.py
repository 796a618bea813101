"""Adapters between ratioscope and other people's trainers, engines and trackers."""

from __future__ import annotations
