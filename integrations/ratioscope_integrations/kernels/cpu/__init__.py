"""The kernel for the CPU."""
