"""What trackers that log through a client's run object have in common: whose run it is, and who opens and ends it."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.trackers.base import Row, RunContext


class ClientTracker(ABC):
    """Writes to the run that it is given, that the trainer's reporter opened or that is live, else to one of its own.

    Args:
        run: a run of the client's, for a backend whose live run cannot be found; it is not ended.
    """

    name: ClassVar[str]
    background: ClassVar[bool] = True
    package: ClassVar[str]

    def __init__(self, run: Any = None) -> None:
        self._given = run
        self._context: RunContext | None = None
        self._run: Any = None
        self._owned = False
        self._place = "no run yet"
        self.identity: Mapping[str, str] | None = None

    @property
    def buffers(self) -> bool:
        """Whether rows are only handed to the client so far, which uploads them until its run has ended."""
        return self._owned

    def open(self, run: RunContext) -> bool:
        """Attaches to a run; where there is none, ``connect`` opens one.

        Returns:
            False if the trainer reports there and its run is not there yet.
        """
        live = self._given if self._given is not None else self._live(run.reporter)
        if live is None and run.reporter is not None:
            return False
        self._context, self._owned = run, live is None
        if live is None:
            self.identity = run.identity or self._new_identity()
        else:
            self._begin(live, run)
        return True

    def attaches(self) -> bool:
        """Whether there is a run that is not ours."""
        return self._given is not None or self._live(None) is not None

    def connect(self) -> dict[str, str]:
        """Opens a run of our own, or continues the one of an earlier process."""
        if self._run is None and self._context is not None:
            self._begin(self._start(self._context, self.identity or {}), self._context)
        return dict(self.identity or {})

    def write(self, row: Row) -> None:
        """Hands one window to the client."""
        if self._run is None:
            self.connect()
        if self._run is not None:
            self._send(self._run, row)

    def close(self) -> None:
        """Ends the run if it is ours; any other is left as it is."""
        context, self._context = self._context, None
        run, self._run = self._run, None
        if run is not None and context is not None and self._owned:
            self._end(run, context.patience)

    def where(self) -> str:
        """The run's address, or the command that shows it."""
        return self._place

    def _begin(self, run: Any, context: RunContext) -> None:
        self._run = run
        self.identity = self._identify(run)
        self._place = self._where(run)
        self._configure(run, context.config)

    def _live(self, reporter: object | None) -> Any:
        """The run that the reporter opened, or without one that which is live in the process; None if there is none."""
        return None

    def _new_identity(self) -> dict[str, str]:
        return {"run_id": secrets.token_hex(16)}

    @abstractmethod
    def _start(self, context: RunContext, identity: Mapping[str, str]) -> Any:
        """Opens a run of our own."""

    @abstractmethod
    def _identify(self, run: Any) -> dict[str, str]:
        """What finds the run again; empty if nothing does."""

    @abstractmethod
    def _where(self, run: Any) -> str:
        """One line for a person."""

    @abstractmethod
    def _configure(self, run: Any, config: Mapping[str, Any]) -> None:
        """Puts the config beside the run."""

    @abstractmethod
    def _send(self, run: Any, row: Row) -> None:
        """Hands one window to the client."""

    @abstractmethod
    def _end(self, run: Any, patience: float) -> None:
        """Ends a run of our own."""
