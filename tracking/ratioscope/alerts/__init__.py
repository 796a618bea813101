"""Alerts: diagnosis during a run."""
