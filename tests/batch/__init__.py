"""Tests of checked batches."""
