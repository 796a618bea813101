"""Tests of summary."""
