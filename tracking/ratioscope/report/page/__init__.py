"""The report and the comparison as HTML pages."""
