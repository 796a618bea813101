"""Base class of trackers that log through a client's run object: finds or opens the run, and ends its own."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from ratioscope.trackers.base import Tracker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.trackers.base import Row, RunContext


class ClientTracker(Tracker):
    """Writes to the run that it is given, else to that of the trainer's reporter or a live one, else to a new one.

    Args:
        run: a run of the client's, for a backend whose live run cannot be found; it is not ended.
    """

    background = True

    uploads_later = True
    """Whether the client still uploads rows of the tracker's own run after ``write``, until the run has ended."""

    def __init__(self, run: Any = None) -> None:
        self._given = run
        self._context: RunContext | None = None
        self._run: Any = None
        self._owned = False
        self._close_timeout = 0.0
        self._location = "no run yet"

    def open(self, run: RunContext) -> bool:
        """Attaches to a run; if there is none, ``connect`` opens one.

        Returns:
            False if the trainer reports there and its run does not exist yet.
        """
        live = self._given if self._given is not None else self._live(run.reporter)
        if live is None and run.reporter is not None:
            return False
        self._context, self._owned, self._close_timeout = run, live is None, run.close_timeout
        if live is None:
            self.identity = run.identity or self._new_identity()
            self.buffers = self.uploads_later
        else:
            self._begin(live, run)
        return True

    def attaches(self) -> bool:
        """Returns whether there is a run that the tracker does not own."""
        return self._given is not None or self._live(None) is not None

    def connect(self) -> dict[str, str]:
        """Opens a run of the tracker's own, or continues that of an earlier process."""
        if self._run is None and self._context is not None:
            self._begin(self._start(self._context, self.identity or {}), self._context)
        return dict(self.identity or {})

    def write(self, row: Row) -> None:
        """Passes one window to the client."""
        if self._run is None:
            self.connect()
        if self._run is not None:
            self._send(self._run, row)

    def close(self) -> None:
        """Ends the run if the tracker owns it; leaves any other as it is."""
        context, self._context = self._context, None
        run, self._run = self._run, None
        if run is not None and context is not None and self._owned:
            self._end(run)

    def where(self) -> str:
        """Returns the run's address, or the command that shows it."""
        return self._location

    def _begin(self, run: Any, context: RunContext) -> None:
        self._run = run
        self.identity = self._identify(run)
        self._location = self._where(run)
        self._configure(run, context.config)

    def _live(self, reporter: object | None) -> Any:
        """Returns the run that the reporter opened, or without a reporter the process's live run; None without one."""
        return None

    def _new_identity(self) -> dict[str, str]:
        return {"run_id": secrets.token_hex(16)}

    @abstractmethod
    def _start(self, context: RunContext, identity: Mapping[str, str]) -> Any:
        """Opens a run of the tracker's own."""

    @abstractmethod
    def _identify(self, run: Any) -> dict[str, str]:
        """Returns what finds the run again; empty if nothing does."""

    @abstractmethod
    def _where(self, run: Any) -> str:
        """Returns one line of text for the user."""

    @abstractmethod
    def _configure(self, run: Any, config: Mapping[str, Any]) -> None:
        """Stores the config beside the run."""

    @abstractmethod
    def _send(self, run: Any, row: Row) -> None:
        """Passes one window to the client."""

    @abstractmethod
    def _end(self, run: Any) -> None:
        """Ends a run of the tracker's own; within ``_close_timeout`` seconds if the client takes a limit."""
