"""Tests of ratioscope."""
