"""Recording: the classes that a training loop uses."""
