"""DiagnosedRun: a run as checks see it, in at most 64 pools and with what they derive from these."""

from __future__ import annotations

import math
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

from ratioscope.config.lookup import UNKNOWN, lookup
from ratioscope.diagnosis import thresholds
from ratioscope.diagnosis.findings import Unchecked
from ratioscope.diagnosis.pool import Pool
from ratioscope.diagnosis.trend import Change, find_change
from ratioscope.runs.pooled import Part, PooledRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ratioscope.correction.rule import Rule
    from ratioscope.record import Record
    from ratioscope.runs.course import Course
    from ratioscope.runs.foreign.names import Name


class DiagnosedRun:
    """A run as checks see it.

    Args:
        pooled: the windows of training; more may be added.
        config: the run config, as :mod:`ratioscope.config.snapshot` makes it; empty if unknown.
        foreign: meaning of the numbers of another trainer's log, by its keys; empty for a run that ratioscope logged.
    """

    def __init__(
        self, pooled: PooledRun, config: Mapping[str, Any], *, foreign: Mapping[str, Name] | None = None
    ) -> None:
        self.config = config
        self.foreign = foreign or {}
        self._pooled = pooled
        self._pools: dict[Part, Pool] = {}

    @classmethod
    def from_records(cls, records: Iterable[Record], config: Mapping[str, Any] | None = None) -> DiagnosedRun:
        """Pools the windows of training among records."""
        return cls(PooledRun.from_records(records), config or {})

    def add(self, record: Record) -> None:
        """Appends a window of training, and leaves out any other record. Derived values are computed anew."""
        for name, member in vars(DiagnosedRun).items():
            if isinstance(member, cached_property):
                self.__dict__.pop(name, None)
        self._pooled.add(record)

    @property
    def windows(self) -> int:
        """Number of windows of training."""
        return self._pooled.windows

    @property
    def without_tokens(self) -> list[int]:
        """Steps of the windows that hold no valid token."""
        return self._pooled.without_tokens

    @property
    def correction(self) -> Rule | None:
        """The rule in force at the end, if known."""
        return self._pooled.correction

    @property
    def steps(self) -> tuple[int, int] | None:
        """Steps of the first and last window."""
        return self._pooled.steps

    @cached_property
    def parts(self) -> list[Pool]:
        """Pools in the order of their steps, at most ``runs.pooled.MOST_PARTS``."""
        # A part that did not change keeps its pool, whose statistics are already computed.
        self._pools = {part: self._pools.get(part) or Pool(part) for part in self._pooled.parts}
        return list(self._pools.values())

    @cached_property
    def whole(self) -> Pool:
        """All windows as one.

        Raises:
            Unchecked: if there is none.
        """
        if not self.parts:
            msg = "no window of training"
            raise Unchecked(msg)
        return _joined(self.parts)

    @cached_property
    def filled(self) -> list[Pool]:
        """The parts that hold a valid token, or whose tokens were not counted."""
        return [part for part in self.parts if part.get("counts/tokens") != 0.0]

    @property
    def course(self) -> Course:
        """Mismatch of each window."""
        return self._pooled.course

    @cached_property
    def change(self) -> Change | None:
        """Rise of the mismatch that lasts; None if there is none."""
        return find_change(self.course.points, synchronous=self.is_synchronous)

    @property
    def is_synchronous(self) -> bool:
        """True if the config shows a trainer that waits for its own generations."""
        waits = self.setting("engine.vllm_mode") in ("colocate", "server")
        return waits and not str(self.setting("engine.weight_sync")).startswith("every ")

    @cached_property
    def steady_parts(self) -> list[Pool]:
        """The parts in which a setting shows alone.

        Before a rise of the mismatch that is no healthy one; or, of a run that drifts from the start, up to twice the
        first part's distance and a quarter of the run, unless these are too few tokens.
        """
        if self.change is None or self.change.healthy:
            return self.filled
        if self.change.index:
            since = self.course.points[self.change.index].first
            return [part for part in self.filled if part.last < since] or self.filled[:1]
        most, end, near = max(1, len(self.filled) // 4), 1, thresholds.GROWTH_FACTOR * self.filled[0].abs_mean
        tokens = self.filled[0].tokens
        while end < most and (tokens < thresholds.FEWEST_TOKENS or self.filled[end].abs_mean <= near):
            tokens += self.filled[end].tokens
            end += 1
        return self.filled[:end]

    @cached_property
    def raised(self) -> DiagnosedRun | None:
        """The windows since a rise after a steady level that is no healthy one, as a run; None without one."""
        if self.change is None or self.change.healthy or not self.change.index:
            return None
        since = self.course.points[self.change.index].first
        parts = [pool.part for pool in self.filled if pool.first >= since]
        return DiagnosedRun(PooledRun.of_parts(parts), self.config, foreign=self.foreign) if parts else None

    @cached_property
    def steady(self) -> Pool:
        """The steady parts merged into one pool.

        Raises:
            Unchecked: if no window holds a valid token.
        """
        if not self.steady_parts:
            msg = "no window holds a valid token"
            raise Unchecked(msg)
        return _joined(self.steady_parts)

    def setting(self, path: str) -> Any:
        """A setting of the run config, or of what the user passed; ``runconfig.UNKNOWN`` if it is unknown."""
        for root in (self.config, self.config.get("ratioscope"), self.config.get("user")):
            value = lookup(root, path)
            if value != UNKNOWN:
                return value
        return UNKNOWN

    def number(self, path: str) -> float | None:
        """A setting that is a number; None if it is none or unknown."""
        value = self.setting(path)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def level(self) -> str | None:
        """Level of the rule in force; None if none is known."""
        if self.correction is not None:
            return self.correction.level
        found = self.setting("correction.level")
        return found if found in ("token", "sequence") else None

    def ratio_mean(self, pool: Pool) -> float:
        """Mean raw ratio of tokens.

        Raises:
            Unchecked: if it is not in the record.
        """
        of_mode = pool.scalars.get("sampling/raw_importance_sampling_ratio/mean") if self.level == "token" else None
        return pool.need("token/raw/mean") if of_mode is None else of_mode

    def ratio_error(self, spread: float) -> float:
        """Standard error of it over the steady parts: of independent tokens, or as the parts scatter if that is more.

        Args:
            spread: standard deviation of one token's ratio.
        """
        alone = spread / math.sqrt(self.steady.enough(1))
        values = [(self.ratio_mean(part), part.tokens) for part in self.steady_parts]
        if len(values) < thresholds.FEWEST_FOR_SCATTER:
            return alone
        total = sum(weight for _, weight in values)
        mean = sum(value * weight for value, weight in values) / total
        scatter = sum((weight / total) ** 2 * (value - mean) ** 2 for value, weight in values)
        return max(alone, math.sqrt(scatter * len(values) / (len(values) - 1)))


Run = DiagnosedRun


def _joined(pools: Sequence[Pool]) -> Pool:
    return Pool(reduce(Part.merge, (pool.part for pool in pools)))
