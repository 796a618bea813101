"""CPU kernel, compiled by numba."""
