"""Words: the verdict and its sentences."""
