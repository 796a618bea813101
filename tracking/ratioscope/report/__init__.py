"""The report: a run, or several, as one page that opens anywhere."""
