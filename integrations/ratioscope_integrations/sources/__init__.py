"""Runs read back from trackers."""
