"""A journal's windows of training pooled while somebody reads it, without making tensors of each."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, reduce
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ratioscope import histogram, thresholds, worst
from ratioscope.correction import Correction
from ratioscope.diagnosis.causes import diagnose
from ratioscope.diagnosis.pool import Pool
from ratioscope.diagnosis.run import Run
from ratioscope.lengths import LENGTH_COUNTS, N_LENGTHS
from ratioscope.shifted import rescale
from ratioscope.slots import COUNTS, GENERATIONS, HISTOGRAMS, MAXIMA, SUMS
from ratioscope.summary import RatioSummary
from ratioscope.top import N_ROWS, N_TOKENS, Top
from ratioscope.view import View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from ratioscope.diagnosis.findings import Diagnosis
    from ratioscope.timeline import Timeline

MOST_AT_ONCE = 256
"""Windows that are kept as numbers before they become one state."""

_TOKENS = "ratioscope/counts/tokens"
_sums, _counts = itemgetter(*SUMS), itemgetter(*COUNTS)


class Pooled:
    """The windows of training of one journal, from the first to the last in at most 64 pools.

    Add every record, then ask.

    Args:
        config: the run config.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._run = Run((), config)
        self._rules: dict[Correction | None, None] = {}
        self._chunk = _Chunk()

    def add(self, stored: Mapping[str, Any], counts_of: Callable[[str], NDArray[np.int64]]) -> None:
        """Adds a record; evaluations and logs without a window are left out.

        Args:
            stored: the record as the journal has it.
            counts_of: bucket counts of a histogram of it by name.
        """
        if stored["split"] != "train" or not stored["scalars"]:
            return
        rule = stored["correction"]
        if self._chunk.steps and rule != self._chunk.rule:
            self._close()
        if not self._chunk.steps:
            correction = None if rule is None else Correction.from_json(rule)
            self._rules.pop(correction, None)
            self._rules[correction] = None
            self._run.correction = correction or self._run.correction
        self._chunk.rule = rule
        self._chunk.add(stored, counts_of)
        if len(self._chunk.steps) >= min(self._run.room, MOST_AT_ONCE):
            self._close()

    def _close(self) -> None:
        """Makes one state of what is kept as numbers."""
        chunk, self._chunk = self._chunk, _Chunk()
        if chunk.steps:
            summary = chunk.summary(None if chunk.rule is None else Correction.from_json(chunk.rule))
            pool = Pool(chunk.steps[0], chunk.steps[-1], len(chunk.steps), summary, {})
            self._run.add(pool, without_tokens=chunk.without_tokens)

    @property
    def run(self) -> Run:
        """The run as checks see it."""
        self._close()
        return self._run

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """What ``ratioscope diagnose`` says of it."""
        return diagnose(self.run)

    @cached_property
    def whole(self) -> thresholds.Pool | None:
        """All windows as one, to try rules on; None if there is none."""
        run = self.run
        if not run.parts or run.steps is None:
            return None
        merged = reduce(RatioSummary.merge, (replace(part.state, correction=None) for part in run.parts))
        if len(self._rules) == 1:
            merged = replace(merged, correction=next(iter(self._rules)))
        return thresholds.Pool(View.of(merged), run.windows, run.steps, tuple(self._rules))


def diagnosis_of(timeline: Timeline) -> Diagnosis:
    """What caused a run's mismatch: from its journal's states, or from its scalars where there is no more."""
    if timeline.pooled is not None:
        return timeline.pooled.diagnosis
    rows: dict[int, dict[str, float]] = {}
    for key, curve in timeline.scalars.items():
        if not key.startswith("eval/"):
            for step, value in zip(curve.steps, curve.values, strict=True):
                rows.setdefault(step, {})[key] = value
    return diagnose(Run((Pool(step, step, 1, None, found) for step, found in sorted(rows.items())), timeline.config))


class _Chunk:
    """Windows of one rule that follow each other, as plain numbers."""

    def __init__(self) -> None:
        self.rule: Mapping[str, Any] | None = None
        self.steps: list[int] = []
        self.without_tokens: list[int] = []
        self._maxima: list[list[float]] = []
        self._sums: list[Sequence[Any]] = []
        self._counts: list[Sequence[int]] = []
        self._histograms = np.zeros((len(HISTOGRAMS), histogram.N_BUCKETS), dtype=np.int64)
        self._lengths: list[Mapping[str, Any]] = []
        self._log_ratios: list[float] = []
        self._tables: dict[str, list[tuple[list[str], list[Any]]]] = {"tokens": [], "rows": []}

    def add(self, stored: Mapping[str, Any], counts_of: Callable[[str], NDArray[np.int64]]) -> None:
        """Adds a window."""
        state = stored["state"]
        self.steps.append(stored["step"])
        if not stored["scalars"].get(_TOKENS, 1.0):
            self.without_tokens.append(stored["step"])
        maxima = state["maxima"].get
        self._maxima.append([maxima(name, -np.inf) for name in MAXIMA])
        self._sums.append(_slots(_sums, SUMS, state["sums"]))
        self._counts.append(_slots(_counts, COUNTS, state["counts"]))
        for row, name in zip(self._histograms, HISTOGRAMS, strict=True):
            row += counts_of(name)
        self._lengths.append(state.get("lengths", {}))
        top = state.get("top", {})
        self._log_ratios += top.get("log_ratios", ())
        for name, tables in self._tables.items():
            if table := top.get(name):
                tables.append((table["columns"], table["rows"]))

    def summary(self, correction: Correction | None) -> RatioSummary:
        """All windows as one state."""
        old = torch.from_numpy(np.array(self._maxima, dtype=np.float64))
        maxima = old.amax(dim=0)
        maxima[GENERATIONS] = old[:, GENERATIONS].sum()
        sums = rescale(torch.from_numpy(np.array(self._sums, dtype=np.float64)), old, maxima).sum(dim=0)
        lengths = [
            sum(histogram.from_sparse(each[name], size=N_LENGTHS) for each in self._lengths if name in each)
            + np.zeros(N_LENGTHS, dtype=np.int64)
            for name in LENGTH_COUNTS
        ]
        known = torch.tensor(self._log_ratios, dtype=torch.float32).double()
        columns = (worst.TOKEN_COLUMNS, N_TOKENS), (worst.ROW_COLUMNS, N_ROWS)
        tables = (
            _worst(found, *how) for found, how in zip(self._tables.values(), columns, strict=True)
        )
        return RatioSummary(
            correction,
            maxima=maxima,
            sums=sums,
            counts=torch.from_numpy(np.array(self._counts, dtype=np.int64).sum(axis=0)),
            histograms=torch.from_numpy(self._histograms),
            lengths=torch.from_numpy(np.stack(lengths)),
            top=Top.empty().merge(Top(known, *tables)),
        )


def _slots(take: Callable[[Mapping[str, Any]], Sequence[Any]], names: Iterable[str], found: Mapping[str, Any]) -> Any:
    """Values in the order of the names; what an older journal lacks is 0."""
    try:
        return take(found)
    except KeyError:
        return [found.get(name, 0) for name in names]


def _worst(tables: Sequence[tuple[list[str], list[Any]]], columns: Sequence[str], size: int) -> torch.Tensor:
    """The rows of several tables that may be among the worst of all, ``(n, len(columns))``, ties included."""
    value = worst.KEYED[0]
    sizes = [abs(row[names.index(value)]) for names, rows in tables for row in rows]
    least = float(np.partition(sizes, -size)[-size]) if len(sizes) > size else 0.0
    kept = []
    for names, rows in tables:
        at = names.index(value)
        chosen = [row for row in rows if abs(row[at]) >= least]
        if chosen:
            kept.append(worst.from_json({"columns": names, "rows": chosen}, columns, len(chosen)))
    return torch.from_numpy(np.concatenate(kept) if kept else np.zeros((0, len(columns))))
