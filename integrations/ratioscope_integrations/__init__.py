"""Adapters for third-party trainers, engines and trackers, one package per product."""

from __future__ import annotations
