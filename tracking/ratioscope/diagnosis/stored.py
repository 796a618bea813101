"""A journal's windows of training pooled while somebody reads it, without making tensors of each."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, reduce
from itertools import groupby
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
_maxima, _sums, _counts = itemgetter(*MAXIMA), itemgetter(*SUMS), itemgetter(*COUNTS)


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
                rows.setdefault(step, {})[key] = float(value)
    return diagnose(Run((Pool(step, step, 1, None, found) for step, found in sorted(rows.items())), timeline.config))


class _Chunk:
    """Windows of one rule that follow each other, as plain numbers."""

    def __init__(self) -> None:
        self.rule: Mapping[str, Any] | None = None
        self.steps: list[int] = []
        self.without_tokens: list[int] = []
        self._maxima: list[Sequence[Any]] = []
        self._sums: list[Sequence[Any]] = []
        self._counts: list[Sequence[Any]] = []
        self._histograms = [np.zeros(histogram.N_BUCKETS, dtype=np.int64) for _ in HISTOGRAMS]
        self._lengths = {name: [0] * N_LENGTHS for name in LENGTH_COUNTS}
        self._log_ratios: list[float] = []
        self._tokens = _Worst(worst.TOKEN_COLUMNS, N_TOKENS)
        self._rows = _Worst(worst.ROW_COLUMNS, N_ROWS)

    def add(self, stored: Mapping[str, Any], counts_of: Callable[[str], NDArray[np.int64]]) -> None:
        """Adds a window."""
        state = stored["state"]
        self.steps.append(stored["step"])
        if not stored["scalars"].get(_TOKENS, 1.0):
            self.without_tokens.append(stored["step"])
        self._maxima.append(_slots(_maxima, MAXIMA, state["maxima"], -np.inf))
        self._sums.append(_slots(_sums, SUMS, state["sums"], 0))
        self._counts.append(_slots(_counts, COUNTS, state["counts"], 0))
        for total, name in zip(self._histograms, HISTOGRAMS, strict=True):
            np.add(total, counts_of(name), out=total)
        lengths = state.get("lengths", {})
        for name, by_length in self._lengths.items():
            sparse = lengths.get(name, {})
            for bucket, count in zip(sparse.get("buckets", ()), sparse.get("counts", ()), strict=True):
                by_length[bucket] += count
        if top := state.get("top"):
            self._log_ratios += top["log_ratios"]
            self._tokens.add(top["tokens"])
            self._rows.add(top["rows"])

    def summary(self, correction: Correction | None) -> RatioSummary:
        """All windows as one state."""
        old = torch.from_numpy(np.array(self._maxima, dtype=np.float64))
        maxima = old.amax(dim=0)
        maxima[GENERATIONS] = old[:, GENERATIONS].sum()
        sums = rescale(torch.from_numpy(np.array(self._sums, dtype=np.float64)), old, maxima).sum(dim=0)
        known = torch.tensor(self._log_ratios, dtype=torch.float32).double()
        return RatioSummary(
            correction,
            maxima=maxima,
            sums=sums,
            counts=torch.from_numpy(np.array(self._counts, dtype=np.int64).sum(axis=0)),
            histograms=torch.from_numpy(np.stack(self._histograms)),
            lengths=torch.tensor(list(self._lengths.values()), dtype=torch.int64),
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


class _Worst:
    """What may be among the worst of many tables, found without reading each as numbers."""

    def __init__(self, columns: Sequence[str], size: int) -> None:
        self._columns, self._size = columns, size
        self._kept: list[tuple[float, list[str], list[Any]]] = []
        self._least = 0.0

    def add(self, table: Mapping[str, Any]) -> None:
        """Adds a table as :func:`ratioscope.worst.to_json` writes it."""
        names = table["columns"]
        at = names.index(worst.KEYED[0])
        for row in table["rows"]:  # the worst first
            value = abs(row[at])
            if value < self._least:
                break
            self._kept.append((value, names, row))
        if len(self._kept) > 4 * self._size:
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
