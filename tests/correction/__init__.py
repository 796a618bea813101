"""Tests of correction."""
