"""Tests of the report: verdict, figures, page and terminal."""
