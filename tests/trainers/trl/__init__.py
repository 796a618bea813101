"""Tests of trl."""
