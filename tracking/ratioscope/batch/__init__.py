"""Checked batches, in every layout that trainers have."""
