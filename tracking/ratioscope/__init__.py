"""ratioscope: see what the importance-sampling correction between vLLM and the trainer does to a GRPO run.

``import ratioscope`` loads neither torch nor a tracker; each name is loaded at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ratioscope._version import __version__

if TYPE_CHECKING:
    from ratioscope.catalogue import CATALOGUE
    from ratioscope.correction import Correction
    from ratioscope.event import Event
    from ratioscope.histogram import Bins
    from ratioscope.journal_reader import JournalReader
    from ratioscope.journal_schema import JournalError
    from ratioscope.layouts import Packing
    from ratioscope.observation import Observation
    from ratioscope.reaction import FindingWarning
    from ratioscope.record import Record
    from ratioscope.recorder import Recorder
    from ratioscope.stages import Stage
    from ratioscope.summary import RatioSummary, summarize
    from ratioscope.trackers.base import Row, RunContext, Tracker
    from ratioscope.trackers.memory import MemoryTracker
    from ratioscope.weighing import Weighed, correct, weigh
    from ratioscope.worst import WorstRow, WorstToken

__all__ = [
    "CATALOGUE",
    "Bins",
    "Correction",
    "Event",
    "FindingWarning",
    "JournalError",
    "JournalReader",
    "MemoryTracker",
    "Observation",
    "Packing",
    "RatioSummary",
    "Record",
    "Recorder",
    "Row",
    "RunContext",
    "Stage",
    "Tracker",
    "Weighed",
    "WorstRow",
    "WorstToken",
    "__version__",
    "correct",
    "summarize",
    "weigh",
]

_HOME = {
    "CATALOGUE": "catalogue",
    "Bins": "histogram",
    "Correction": "correction",
    "Event": "event",
    "FindingWarning": "reaction",
    "JournalError": "journal_schema",
    "JournalReader": "journal_reader",
    "MemoryTracker": "trackers.memory",
    "Observation": "observation",
    "Packing": "layouts",
    "RatioSummary": "summary",
    "Record": "record",
    "Recorder": "recorder",
    "Row": "trackers.base",
    "RunContext": "trackers.base",
    "Stage": "stages",
    "Tracker": "trackers.base",
    "Weighed": "weighing",
    "WorstRow": "worst",
    "WorstToken": "worst",
    "correct": "weighing",
    "summarize": "summary",
    "weigh": "weighing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
