"""Fused kernels for :mod:`ratioscope.kernels`."""
