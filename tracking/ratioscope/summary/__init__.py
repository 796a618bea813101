"""Reducing one batch to the state, and merging states."""
