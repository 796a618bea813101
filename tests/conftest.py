"""Settings that every test shares."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# Tests of numbers take the plain path, whichever way a kernel's compilation goes; test_kernels.py takes both.
os.environ["RATIOSCOPE_KERNELS"] = "0"

# What needs other packages than this environment has; scripts/layers.py makes one for each.
collect_ignore_glob = [] if os.environ.get("RATIOSCOPE_LAYER") else ["layers/*"]

settings.register_profile("local", deadline=None, max_examples=40)
settings.register_profile("ci", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides a launcher's ranks: a test is its own rank 0 unless it says otherwise."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
