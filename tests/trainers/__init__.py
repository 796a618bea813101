"""Tests of trainers."""
