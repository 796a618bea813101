"""Reaction: the user's action on findings, as ``on_finding`` chooses it."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from ratioscope.event import Event

if TYPE_CHECKING:
    from ratioscope.incidents import Incidents

OnFinding = Literal["warn", "stop"] | Callable[[Event], object] | None
"""None: no action. ``"warn"``: a Python warning. ``"stop"``: training ends at an error of high confidence. A callable:
called with each event on the training thread of rank 0; training ends if it returns True."""

MOST_WAITING = 64
"""Events that may wait for the training thread."""


class FindingWarning(UserWarning):
    """A finding of the diagnosis above ``info``, with ``on_finding="warn"``."""


class Reaction:
    """Acts on events as ``on_finding`` chooses. No method raises.

    Args:
        on_finding: the user's choice.
        incidents: where failures are reported.

    Attributes:
        wants_stop: True once a finding requested a stop. Rank 0 decides; the next window carries it to all ranks.

    Raises:
        ValueError: if ``on_finding`` is another text.
        TypeError: if it is neither a text nor a callable.
    """

    def __init__(self, on_finding: OnFinding, incidents: Incidents) -> None:
        if isinstance(on_finding, str) and on_finding not in ("warn", "stop"):
            msg = f'got on_finding={on_finding!r}; expected "warn", "stop", a callable of one event, or None'
            raise ValueError(msg)
        if on_finding is not None and not isinstance(on_finding, str) and not callable(on_finding):
            msg = f'got on_finding of type {type(on_finding).__name__}; expected "warn", "stop", a callable of one '
            msg += "event, or None"
            raise TypeError(msg)
        self._on_finding = on_finding
        self._incidents = incidents
        self._waiting: deque[Event] = deque(maxlen=MOST_WAITING)
        self.wants_stop = False

    def on_event(self, event: Event) -> None:
        """Queues an event, from any thread."""
        if self._on_finding is not None:
            self._waiting.append(event)

    def act(self) -> None:
        """Acts on the queued events, on the training thread."""
        while self._waiting:
            event = self._waiting.popleft()
            with self._incidents.guard("on_finding"):
                self._act_on(event)

    def _act_on(self, event: Event) -> None:
        if callable(self._on_finding):
            self.wants_stop |= self._on_finding(event) is True
        elif self._on_finding == "stop":
            self.wants_stop |= event.is_certain
        elif event.is_news and event.status != "gone":
            warnings.warn(f"{event.title}: {event.text}", FindingWarning, stacklevel=2)
