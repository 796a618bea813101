"""Engines that sample the rollouts, one module each."""

from __future__ import annotations
