"""Names that backends accept, and names that no other key of a run has."""

from __future__ import annotations

import re

MAX_NAME = 250
"""Longest name that every MLflow server accepts."""


def clean_name(name: str) -> str:
    """Returns the nearest name that MLflow, DVCLive and SwanLab accept.

    One bad name would make an MLflow server refuse a whole batch of metrics.
    """
    parts = [part for part in re.sub(r"[^\w\-. /]", "_", name).split("/") if part]
    return "/".join(part.replace(".", "_") if set(part) == {"."} else part for part in parts)[:MAX_NAME] or "_"


class UniqueNames:
    """Maps keys to clean names, the same name for a key every time and a different one for each key."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def name(self, key: str) -> str:
        """Returns the key's clean name, numbered if an earlier key has it."""
        if key not in self._names:
            clean, taken, number = clean_name(key), set(self._names.values()), 2
            name = clean
            while name in taken:
                name, number = f"{clean[: MAX_NAME - 10]}_{number}", number + 1
            self._names[key] = name
        return self._names[key]
