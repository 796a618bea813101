"""Benchmarks of observing and flushing, against other tools on the same tensors."""
