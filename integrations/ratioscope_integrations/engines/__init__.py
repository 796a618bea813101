"""Engines that sample the rollouts, one package each."""

from __future__ import annotations
