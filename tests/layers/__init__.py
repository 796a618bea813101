"""Tests of other environments, one file for all layers whose name begins alike."""
