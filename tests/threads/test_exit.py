"""Ends of processes with a backlog and with trackers that hang."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.exit_storm import CODES, storm

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

PROCESSES = 3 * len(CODES)
"""Processes in the test; ``tests/support/exit_storm.py`` takes another number, such as 200."""


def test_every_process_ends_in_time_with_its_own_exit_code(tmp_path: Path) -> None:
    """However a process ends, its exit code is its own, it ends within 15 s, and the journal has every record."""
    assert storm(tmp_path, PROCESSES) == {"ok": PROCESSES}
