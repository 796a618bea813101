"""Verdict: sentences, key figures and settings; knows no figure."""
