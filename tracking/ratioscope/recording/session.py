"""Session: the output of a recorder from its first record to its close, whoever asks for it and when."""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, Any

from ratioscope.recording.output import Output
from ratioscope.threads import OneAtATime

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ratioscope.incidents import Incidents
    from ratioscope.record import Record
    from ratioscope.recording.output import RunSetup


class Session:
    """Opens an output when it is needed and closes it, at the exit of the process at the latest. No method raises.

    A call from a signal handler that interrupts another call is made after it: neither a tracker nor the journal is
    entered twice.

    Args:
        incidents: where failures are reported.
    """

    def __init__(self, incidents: Incidents) -> None:
        self._incidents = incidents
        self._calls = OneAtATime()
        self.output: Output | None = None
        """The open output; None before ``open`` and after ``close``."""

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state of a copy, which is closed: two writers would share a journal and the runs of trackers."""
        return {"_incidents": self._incidents, "_calls": OneAtATime(), "output": None}

    def open(self, setup: Callable[[], RunSetup]) -> None:
        """Opens the output and its trackers, as far as that has not happened; ``setup`` makes a new output's."""
        self._calls.run(lambda: self._open(setup))

    def write(self, record: Record, setup: Callable[[], RunSetup], *, merge_s: float, observe_s: float) -> Record:
        """Stores a record and sends it, after ``open``; see :meth:`Output.write`."""

        def write() -> Record:
            self._open(setup)
            if self.output is None:
                return record
            # The newest hook runs first: registered again, this one precedes that of a tracker imported meanwhile.
            atexit.unregister(self._close_at_exit)
            atexit.register(self._close_at_exit)
            return self.output.write(record, merge_s=merge_s, observe_s=observe_s)

        return self._calls.run(write) or record

    def close(self) -> None:
        """Closes the output within its timeout."""
        self._calls.run(self._close)

    @property
    def journal_path(self) -> Path | None:
        """The journal's file; None where there is none, and while it cannot be written."""
        return None if self.output is None else self.output.journal_path

    def where(self) -> list[str]:
        """Returns the location of each open tracker's run, one line each."""
        return [] if self.output is None else self.output.where()

    def _open(self, setup: Callable[[], RunSetup]) -> None:
        if self.output is None:
            with self._incidents.guard("run config"):
                self.output = Output(setup())
                atexit.register(self._close_at_exit)
        if self.output is not None:
            self.output.open()

    def _close(self) -> None:
        output, self.output = self.output, None
        if output is not None:
            atexit.unregister(self._close_at_exit)
            output.close()

    def _close_at_exit(self) -> None:
        self._calls.free()
        self.close()
