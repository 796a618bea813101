"""Sweep of thresholds: what other bounds would have done to a recorded run."""
