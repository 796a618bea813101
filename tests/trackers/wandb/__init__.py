"""Tests of wandb."""
