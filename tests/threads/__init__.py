"""Tests of threads, signals and refused threads."""
