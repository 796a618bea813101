"""Record: one window of a run on the host, and as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ratioscope._version import DEFINITIONS_VERSION
from ratioscope.correction.bounds import Correction
from ratioscope.state import worst
from ratioscope.summary.stored import StoredSummary

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from ratioscope.correction.rule import Rule
    from ratioscope.summary.host import HostSummary


class RuleReader:
    """Reader of the rules of many records, which seldom change: the last one is kept."""

    def __init__(self) -> None:
        self._stored: Mapping[str, Any] | None = None
        self._rule: Rule | None = None

    def read(self, stored: Mapping[str, Any] | None) -> Rule | None:
        """Reads what :meth:`Rule.to_json` wrote; None if nothing was corrected."""
        if stored != self._stored:
            self._stored, self._rule = stored, None if stored is None else Correction.from_json(stored)
        return self._rule


@dataclass(frozen=True)
class Record:
    """One window: pooled over ranks, micro-batches and generations. Everything downstream is computed from it.

    Attributes:
        step: the trainer's global step at the flush.
        split: ``"train"`` or ``"eval"``.
        time: seconds since the epoch at the flush.
        scalars: every statistic of the catalogue that has data, by full key; finite floats.
        summary: the mergeable state behind the scalars, as numpy arrays.
        world_size: number of ranks that were merged.
        events: messages about this window, such as an observation that failed.
        logs: the trainer's own log of this step, where it is relayed.
        health: what recording itself costs and how delivery stands, by full key: ``ratioscope/overhead/observe_ms``
            of this window and ``ratioscope/overhead/flush_ms`` of the flush before, on the host;
            ``ratioscope/delivery/<tracker>/{queued,delivered,failed}``.
        texts: text of each of the worst tokens and its neighbours, on rank 0 where the recorder can decode; None for a
            token whose text is unknown, and empty where none is known.
        definitions: version of the metric definitions the scalars follow.
    """

    step: int
    split: str
    time: float
    scalars: Mapping[str, float]
    summary: HostSummary
    world_size: int = 1
    events: tuple[str, ...] = ()
    logs: Mapping[str, float] = field(default_factory=dict)
    health: Mapping[str, float] = field(default_factory=dict)
    texts: tuple[worst.TokenText | None, ...] = ()
    definitions: int = field(default=DEFINITIONS_VERSION)

    @property
    def correction(self) -> Rule | None:
        """The rule of this window; None if nothing was corrected."""
        return self.summary.correction

    @property
    def worst_tokens(self) -> tuple[worst.WorstToken, ...]:
        """The tokens with the largest absolute log-ratio over all ranks, worst first; at most 32."""
        return worst.tokens_of(self.summary.top.tokens, self.texts)

    @property
    def worst_rows(self) -> tuple[worst.WorstRow, ...]:
        """The rows with the largest mean absolute log-ratio over all ranks, worst first; at most 8."""
        return worst.rows_of(self.summary.top.rows)

    def counts(self, name: str) -> NDArray[np.int64]:
        """Bucket counts of one histogram, int64 ``(N_BUCKETS,)``; names are ``slots.HISTOGRAMS``."""
        return self.summary.histogram(name)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON with sparse histograms; infinities are written as strings."""
        return {
            "definitions": self.definitions,
            "step": self.step,
            "split": self.split,
            "time": self.time,
            "world_size": self.world_size,
            "events": list(self.events),
            "correction": None if self.correction is None else self.correction.to_json(),
            "logs": dict(self.logs),
            "health": dict(self.health),
            "scalars": {key: value for key, value in self.scalars.items() if math.isfinite(value)},
            **({"texts": worst.texts_to_json(self.texts)} if any(self.texts) else {}),
            "state": self.summary.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], rules: RuleReader | None = None) -> Record:
        """Inverse of :meth:`to_json`.

        Args:
            data: the plain JSON, which must not change.
            rules: reader of the rule, where many records are read.
        """
        correction = (rules or RuleReader()).read(data["correction"])
        return cls(
            step=data["step"],
            split=data["split"],
            time=data["time"],
            scalars={} if _has_failed(data["state"]) else data["scalars"],
            summary=StoredSummary(data["state"], correction),
            world_size=data["world_size"],
            events=tuple(data["events"]),
            logs=data["logs"],
            health=data["health"],
            texts=worst.texts_from_json(data.get("texts", ())),
            definitions=data["definitions"],
        )


def _has_failed(state: Mapping[str, Any]) -> bool:
    """Returns whether every observation of a stored window failed. Earlier versions gave such a window counts of 0."""
    return bool(state["counts"].get("errors")) and state["maxima"].get("generations", -math.inf) <= 0.0
