"""Runs that ratioscope did not record."""
