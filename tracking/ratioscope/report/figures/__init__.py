"""Figures of a report; they know no page."""
