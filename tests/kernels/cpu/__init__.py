"""Tests of the CPU kernel."""
