"""A journal's windows of training pooled while somebody reads it, without making tensors of each."""

from __future__ import annotations

from array import array
from dataclasses import replace
from functools import cached_property, reduce
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ratioscope.correction.bounds import Correction
from ratioscope.diagnosis.evaluate import diagnose
from ratioscope.diagnosis.pool import Pool
from ratioscope.diagnosis.run import Run, pooled_with
from ratioscope.state import histogram, worst
from ratioscope.state.length_histogram import LENGTH_COUNTS, N_LENGTHS
from ratioscope.state.rescale import rescale
from ratioscope.state.slots import COUNTS, GENERATIONS, HISTOGRAMS, MAXIMA, SUMS
from ratioscope.state.tables import N_LOG_RATIOS, N_ROWS, N_TOKENS, Top
from ratioscope.summary.summary import RatioSummary
from ratioscope.sweep import recommend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from ratioscope.correction.rule import Rule
    from ratioscope.diagnosis.findings import Diagnosis
    from ratioscope.runs.timeline import Timeline

MOST_AT_ONCE = 256
"""Windows of a part that are kept as rows of numbers before they become one."""

_TOKENS = "ratioscope/counts/tokens"
_maxima, _sums, _counts = itemgetter(*MAXIMA), itemgetter(*SUMS), itemgetter(*COUNTS)


class Pooled:
    """The windows of training of one journal, from the first to the last in at most 64 pools.

    Add every record, then ask.

    Args:
        config: the run config.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._rules: dict[Rule | None, None] = {}
        self._last: Any = ()
        self._correction: Rule | None = None
        self._parts: list[_Chunk] = []
        self._span = 1
        self._without_tokens: list[int] = []

    def add(self, stored: Mapping[str, Any], counts_of: Callable[[str], NDArray[np.int64]]) -> None:
        """Adds a record; evaluations and logs without a window are left out.

        Args:
            stored: the record as the journal has it.
            counts_of: bucket counts of a histogram of it by name.
        """
        if stored["split"] != "train" or not stored["scalars"]:
            return
        rule = stored["correction"]
        if rule != self._last:
            self._last, self._correction = rule, None if rule is None else Correction.from_json(rule)
            self._rules.pop(self._correction, None)
            self._rules[self._correction] = None
        if not stored["scalars"].get(_TOKENS, 1.0):
            self._without_tokens.append(stored["step"])
        parts = self._parts
        if parts and parts[-1].windows < self._span:
            parts[-1].add(stored, counts_of, self._correction)
        else:
            chunk = _Chunk()
            chunk.add(stored, counts_of, self._correction)
            self._span = pooled_with(parts, chunk, self._span)

    @cached_property
    def run(self) -> Run:
        """The run as checks see it."""
        ruled = [rule for rule in self._rules if rule is not None]
        return Run.of_parts(
            [Pool(chunk.first, chunk.last, chunk.windows, chunk.summary(), {}) for chunk in self._parts],
            self._config,
            correction=ruled[-1] if ruled else None,
            without_tokens=self._without_tokens,
        )

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """What ``ratioscope diagnose`` says of it."""
        return diagnose(self.run)

    @cached_property
    def whole(self) -> recommend.Pool | None:
        """All windows as one, to try rules on; None if there is none."""
        run = self.run
        if not run.parts or run.steps is None:
            return None
        merged = reduce(RatioSummary.merge, (replace(part.state, correction=None) for part in run.parts))
        if len(self._rules) == 1:
            merged = replace(merged, correction=next(iter(self._rules)))
        return recommend.Pool(merged.view(), run.windows, run.steps, tuple(self._rules))


def diagnosis_of(timeline: Timeline) -> Diagnosis:
    """What caused a run's mismatch: from its journal's states, or from its scalars where there is no more."""
    if timeline.pooled is not None:
        return timeline.pooled.diagnosis
    from ratioscope.diagnosis.read import run_of  # which reads by way of this module

    return diagnose(run_of(timeline))


class _Chunk:
    """Neighbouring windows as plain numbers: one row for each, or for many that were already merged."""

    def __init__(self) -> None:
        self.windows = 0
        self.first = self.last = 0
        self.rules: set[Rule | None] = set()
        self._maxima, self._sums, self._counts = array("d"), array("d"), array("q")
        self._histograms = [np.zeros(histogram.N_BUCKETS, dtype=np.int64) for _ in HISTOGRAMS]
        self._lengths = [np.zeros(N_LENGTHS, dtype=np.int64) for _ in LENGTH_COUNTS]
        self._log_ratios = array("d")
        self._tokens = _Worst(worst.TOKEN_COLUMNS, N_TOKENS)
        self._rows = _Worst(worst.ROW_COLUMNS, N_ROWS)

    def add(
        self,
        stored: Mapping[str, Any],
        counts_of: Callable[[str], NDArray[np.int64]],
        correction: Rule | None,
    ) -> None:
        """Adds the window that follows."""
        state = stored["state"]
        self.first = self.first if self.windows else stored["step"]
        self.last = stored["step"]
        self.windows += 1
        self.rules.add(correction)
        self._maxima.extend(_numbers(_slots(_maxima, MAXIMA, state["maxima"], -np.inf)))
        self._sums.extend(_numbers(_slots(_sums, SUMS, state["sums"], 0.0)))
        self._counts.extend(_slots(_counts, COUNTS, state["counts"], 0))
        for total, name in zip(self._histograms, HISTOGRAMS, strict=True):
            np.add(total, counts_of(name), out=total)
        lengths = state.get("lengths", {})
        for by_length, name in zip(self._lengths, LENGTH_COUNTS, strict=True):
            sparse = lengths.get(name)
            if sparse and sparse["buckets"]:
                by_length[sparse["buckets"]] += sparse["counts"]
        if top := state.get("top"):
            self._log_ratios.extend(top["log_ratios"])
            self._tokens.add(top["tokens"])
            self._rows.add(top["rows"])
        if len(self._maxima) > MOST_AT_ONCE * len(MAXIMA):
            self._fold()

    def merge(self, later: _Chunk) -> _Chunk:
        """Takes over a later one."""
        self.windows, self.last = self.windows + later.windows, later.last
        self.rules |= later.rules
        self._maxima.extend(later._maxima)
        self._sums.extend(later._sums)
        self._counts.extend(later._counts)
        self._log_ratios.extend(later._log_ratios)
        for total, more in zip(self._histograms + self._lengths, later._histograms + later._lengths, strict=True):
            np.add(total, more, out=total)
        self._tokens.merge(later._tokens)
        self._rows.merge(later._rows)
        if len(self._maxima) > MOST_AT_ONCE * len(MAXIMA):
            self._fold()
        return self

    def _fold(self) -> None:
        """Makes one row of all."""
        maxima, sums, counts = self._folded()
        self._maxima, self._sums = array("d", maxima.tolist()), array("d", sums.tolist())
        self._counts = array("q", counts.tolist())
        self._log_ratios = array("d", sorted(self._log_ratios, reverse=True)[:N_LOG_RATIOS])

    def _folded(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Maxima, sums and counts of all."""
        old = torch.from_numpy(np.array(self._maxima)).view(-1, len(MAXIMA))
        maxima = old.amax(dim=0)
        maxima[GENERATIONS] = old[:, GENERATIONS].sum()
        sums = rescale(torch.from_numpy(np.array(self._sums)).view(-1, len(SUMS)), old, maxima).sum(dim=0)
        counts = torch.from_numpy(np.array(self._counts).reshape(-1, len(COUNTS)).sum(axis=0))
        return maxima, sums, counts

    def summary(self) -> RatioSummary:
        """All windows as one state; the rule is named if it was the same in all."""
        maxima, sums, counts = self._folded()
        known = torch.from_numpy(np.array(self._log_ratios, dtype=np.float32)).double()
        return RatioSummary(
            next(iter(self.rules)) if len(self.rules) == 1 else None,
            maxima=maxima,
            sums=sums,
            counts=counts,
            histograms=torch.from_numpy(np.stack(self._histograms)),
            lengths=torch.from_numpy(np.stack(self._lengths)),
            top=Top.empty().merge(Top(known, self._tokens.table(), self._rows.table())),
        )


def _slots(
    take: Callable[[Mapping[str, Any]], Sequence[Any]], names: Iterable[str], found: Mapping[str, Any], missing: float
) -> Sequence[Any]:
    """Values in the order of the names; some are missing in an older journal, or where nothing was seen."""
    try:
        return take(found)
    except KeyError:
        return [found.get(name, missing) for name in names]


def _numbers(values: Sequence[Any]) -> array[float]:
    """Floats, of which a journal writes those that are not finite as text."""
    try:
        return array("d", values)
    except TypeError:
        return array("d", map(float, values))


class _Worst:
    """What may be among the worst of many tables, found without reading each as numbers."""

    def __init__(self, columns: Sequence[str], size: int) -> None:
        self._columns, self._size = columns, size
        self._kept: list[tuple[float, list[str], list[Any]]] = []
        self._least = 0.0

    def add(self, table: Mapping[str, Any]) -> None:
        """Adds a table as :func:`ratioscope.state.worst.to_json` writes it."""
        names = table["columns"]
        at = names.index(worst.KEYED[0])
        for row in table["rows"]:  # the worst first
            value = abs(row[at])
            if value < self._least:
                break
            self._kept.append((value, names, row))
        if len(self._kept) > 4 * self._size:
            self._trim()

    def merge(self, later: _Worst) -> None:
        """Takes over what another kept."""
        self._kept += later._kept
        self._trim()

    def _trim(self) -> None:
        """Lets go of what is not among the worst; what ties with the last of them stays."""
        if len(self._kept) > self._size:
            self._least = sorted((kept[0] for kept in self._kept), reverse=True)[self._size - 1]
            self._kept = [kept for kept in self._kept if kept[0] >= self._least]

    def table(self) -> torch.Tensor:
        """These, float64 ``(n, len(columns))``."""
        self._trim()
        tables = [
            worst.from_json({"columns": names, "rows": rows}, self._columns, len(rows))
            for names, rows in (
                (names, [row for *_, row in kept]) for names, kept in groupby(self._kept, itemgetter(1))
            )
        ]
        return torch.from_numpy(np.concatenate(tables) if tables else np.zeros((0, len(self._columns))))
