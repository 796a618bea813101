"""Tests of trackio."""
