"""The report of a run and the comparison of runs: verdict (words), figures, and page and terminal."""
