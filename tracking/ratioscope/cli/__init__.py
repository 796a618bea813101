"""The command line, one file for each command: ``add`` describes it and ``run`` does it."""
