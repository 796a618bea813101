"""Tests of tensorboard."""
