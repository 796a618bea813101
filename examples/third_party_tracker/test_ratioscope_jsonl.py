"""Conformance checks of the tracker."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from ratioscope_jsonl import JsonLinesTracker

from ratioscope import testing
from ratioscope.testing import Received

if TYPE_CHECKING:
    from pathlib import Path


def read_back(folder: Path) -> Received:
    """Reads the contents of the file."""
    config: dict[str, Any] | None = None
    scalars, histograms = defaultdict(list), defaultdict(list)
    for line in map(json.loads, (folder / "ratioscope.jsonl").read_text(encoding="utf-8").splitlines()):
        config = line.get("config", config)
        for key, value in line.get("scalars", {}).items():
            scalars[key].append((line["step"], value))
        for key, bins in line.get("histograms", {}).items():
            histograms[key].append((line["step"], bins["counts"]))
    return Received(scalars, histograms, config)


@pytest.mark.parametrize("check", testing.CHECKS)
def test_conforms(check: testing.Check, tmp_path: Path) -> None:
    """The tracker passes each check."""
    check(JsonLinesTracker, read_back, tmp_path)
