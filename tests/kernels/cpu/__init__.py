"""Tests of cpu."""
