"""ratioscope: logs what the importance-sampling correction between vLLM and the trainer does to a GRPO run.

``import ratioscope`` loads neither torch nor a tracker; each name is loaded at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ratioscope._version import __version__

if TYPE_CHECKING:
    from ratioscope.alerts.reaction import FindingWarning
    from ratioscope.batch.observation import Observation
    from ratioscope.batch.packing import Packing
    from ratioscope.correction.bounds import Correction
    from ratioscope.correction.rule import Rule
    from ratioscope.correction.stages import Stage
    from ratioscope.correction.weights import Weighed, correct, weigh
    from ratioscope.delivery.sync import sync
    from ratioscope.diagnosis import diagnose
    from ratioscope.event import Event
    from ratioscope.journal.reader import JournalReader
    from ratioscope.journal.schema import JournalError
    from ratioscope.metrics.catalogue import CATALOGUE
    from ratioscope.record import Record
    from ratioscope.recording.recorder import Recorder
    from ratioscope.runs.read import read as read_run
    from ratioscope.state.histogram import Bins
    from ratioscope.state.worst import WorstRow, WorstToken
    from ratioscope.summary.summary import RatioSummary, summarize
    from ratioscope.sweep.outcome import sweep_view
    from ratioscope.trackers.base import Row, RunContext, Tracker
    from ratioscope.trackers.memory import MemoryTracker

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
    "Rule",
    "RunContext",
    "Stage",
    "Tracker",
    "Weighed",
    "WorstRow",
    "WorstToken",
    "__version__",
    "correct",
    "diagnose",
    "read_run",
    "summarize",
    "sweep_view",
    "sync",
    "weigh",
]

# No name here may be that of a subpackage: importing the subpackage would replace it (hence `sweep_view`, not `sweep`).
_HOME = {
    "Bins": "state.histogram",
    "CATALOGUE": "metrics.catalogue",
    "Correction": "correction.bounds",
    "Event": "event",
    "FindingWarning": "alerts.reaction",
    "JournalError": "journal.schema",
    "JournalReader": "journal.reader",
    "MemoryTracker": "trackers.memory",
    "Observation": "batch.observation",
    "Packing": "batch.packing",
    "RatioSummary": "summary.summary",
    "Record": "record",
    "Recorder": "recording.recorder",
    "Row": "trackers.base",
    "Rule": "correction.rule",
    "RunContext": "trackers.base",
    "Stage": "correction.stages",
    "Tracker": "trackers.base",
    "Weighed": "correction.weights",
    "WorstRow": "state.worst",
    "WorstToken": "state.worst",
    "correct": "correction.weights",
    "diagnose": "diagnosis",
    "read_run": "runs.read:read",
    "summarize": "summary.summary",
    "sweep_view": "sweep.outcome",
    "sync": "delivery.sync",
    "weigh": "correction.weights",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    module, _, attribute = _HOME[name].partition(":")
    value = getattr(import_module(f"{__name__}.{module}"), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
