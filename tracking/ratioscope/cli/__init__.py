"""The command line, one file per command: ``add`` describes the command, ``run`` executes it."""
