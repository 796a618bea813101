"""Tests of flattening a config."""

from __future__ import annotations

from ratioscope.config.flatten import flatten


def test_nested_mappings_become_dotted_paths() -> None:
    """Leaves keep their values and their order; empty mappings and lists are leaves."""
    config = {"a": {"b": 1, "c": {"d": "x"}}, "e": [1, {"f": 2}], "g": {}, 7: None}
    expected = {"a.b": 1, "a.c.d": "x", "e": [1, {"f": 2}], "g": {}, "7": None}
    assert flatten(config) == expected
    assert list(flatten(config)) == list(expected)


def test_the_prefix_comes_first() -> None:
    """A prefix is joined to each path by a dot, and an empty config has no path."""
    assert flatten({"a": {"b": 1}}, "ratioscope") == {"ratioscope.a.b": 1}
    assert flatten({}, "ratioscope") == {}
