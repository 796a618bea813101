"""Run: a run as checks see it, from its first window to its last in at most 64 pools."""

from __future__ import annotations

import math
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from ratioscope.config.lookup import UNKNOWN, lookup
from ratioscope.diagnosis import thresholds
from ratioscope.diagnosis.findings import Unchecked
from ratioscope.diagnosis.pool import Pool
from ratioscope.diagnosis.trend import find_jump, is_growing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ratioscope.correction.rule import Rule
    from ratioscope.record import Record
    from ratioscope.runs.foreign.names import Name


class Part(Protocol):
    """Neighbouring windows that merge with the next ones."""

    @property
    def windows(self) -> int:
        """How many they are."""
        ...

    def merge(self, later: Any, /) -> Self:
        """This and a later one as one."""
        ...


_P = TypeVar("_P", bound=Part)


def pooled_with(parts: list[_P], window: _P, span: int) -> int:
    """Appends a window to parts of so many windows; neighbours are pooled evenly once there are too many.

    Returns:
        How many windows a part has from now on.
    """
    if parts and parts[-1].windows + window.windows <= span:
        parts[-1] = parts[-1].merge(window)
    else:
        parts.append(window)
    if len(parts) > thresholds.MOST_PARTS:
        pairs = [parts[at : at + 2] for at in range(0, len(parts), 2)]
        parts[:] = [pair[0].merge(pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
        return 2 * span
    return span


class Run:
    """What checks ask.

    Args:
        windows: pools of one window each, in the order of their steps.
        config: the run config, as :mod:`ratioscope.config.snapshot` makes it; empty if unknown.
        correction: the rule in force, if known.
        foreign: what the numbers of another trainer's log are, by its keys; empty for a run that ratioscope logged.
    """

    def __init__(
        self,
        windows: Iterable[Pool],
        config: Mapping[str, Any],
        *,
        correction: Rule | None = None,
        foreign: Mapping[str, Name] | None = None,
    ) -> None:
        self.config = config
        self.foreign = foreign or {}
        self.correction = correction
        self.windows = 0
        self.without_tokens: list[int] = []
        """Steps of the windows that hold no valid token."""
        self.parts: list[Pool] = []
        self._span = 1
        for window in windows:
            self._add(window)

    @classmethod
    def of(cls, records: Iterable[Record], config: Mapping[str, Any] | None = None) -> Run:
        """Reads the windows of training off records, one after the other."""
        run = cls((), config or {})
        for record in records:
            run.add(record)
        return run

    @classmethod
    def of_parts(
        cls,
        parts: Sequence[Pool],
        config: Mapping[str, Any],
        *,
        correction: Rule | None,
        without_tokens: list[int],
    ) -> Run:
        """A run whose windows are already pooled by :func:`pooled_with`.

        Args:
            parts: pools in the order of their steps.
            config: the run config.
            correction: the rule in force at the end.
            without_tokens: steps of the windows that hold no valid token.
        """
        run = cls((), config, correction=correction)
        run.parts, run.windows, run.without_tokens = list(parts), sum(part.windows for part in parts), without_tokens
        return run

    def add(self, record: Record) -> None:
        """Appends a window of training, and leaves out any other record. What was derived before is derived anew."""
        if record.split != "train" or not record.scalars:
            return
        for name, member in vars(Run).items():
            if isinstance(member, cached_property):
                self.__dict__.pop(name, None)
        self.correction = record.correction or self.correction
        self._add(Pool(record.step, record.step, 1, record.summary, {}), known=record.scalars)

    def _add(self, window: Pool, *, known: Mapping[str, float] | None = None) -> None:
        """Appends a window."""
        self.windows += 1
        scalars = window.known if known is None else known
        if not scalars.get("ratioscope/counts/tokens", 1.0):
            self.without_tokens.append(window.last)
        self._span = pooled_with(self.parts, window, self._span)

    @property
    def steps(self) -> tuple[int, int] | None:
        """Of the first and the last window."""
        return (self.parts[0].first, self.parts[-1].last) if self.parts else None

    @cached_property
    def whole(self) -> Pool:
        """All windows as one.

        Raises:
            Unchecked: if there is none.
        """
        if not self.parts:
            msg = "no window of training"
            raise Unchecked(msg)
        return reduce(Pool.merge, self.parts)

    @cached_property
    def filled(self) -> list[Pool]:
        """The parts that hold a valid token, or whose tokens nobody counted."""
        return [part for part in self.parts if part.get("counts/tokens") != 0.0]

    @cached_property
    def jump(self) -> int | None:
        """Index of the first of the filled parts after the mismatch jumped up and stayed; None if it never did."""
        return find_jump(self.filled)

    @cached_property
    def grows(self) -> bool:
        """Whether the mismatch grows over the run, step by step."""
        return self.jump is None and is_growing(self.filled)

    @cached_property
    def steady_parts(self) -> list[Pool]:
        """The parts in which a setting shows alone.

        Before a jump; or, of a run that drifts, up to twice the first part's distance and a quarter of the run, unless
        these are too few tokens.
        """
        end = len(self.filled)
        if self.jump is not None:
            end = self.jump
        elif self.grows:
            most, end, near = max(1, end // 4), 1, thresholds.GROWTH_FACTOR * self.filled[0].abs_mean
            tokens = self.filled[0].tokens
            while end < most and (tokens < thresholds.FEWEST_TOKENS or self.filled[end].abs_mean <= near):
                tokens += self.filled[end].tokens
                end += 1
        return self.filled[:end]

    @cached_property
    def steady(self) -> Pool:
        """These as one.

        Raises:
            Unchecked: if no window holds a valid token.
        """
        if not self.steady_parts:
            msg = "no window holds a valid token"
            raise Unchecked(msg)
        return reduce(Pool.merge, self.steady_parts)

    def setting(self, path: str) -> Any:
        """A setting of the run config, or of what the user passed; ``runconfig.UNKNOWN`` where nobody knows."""
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
        """Level of the rule in force; None if nobody knows one."""
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
