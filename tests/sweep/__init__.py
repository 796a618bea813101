"""Tests of sweep."""
