"""Tables of the largest values on the host."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import ratioscope as rs
from ratioscope.state.host_tables import HostTables


def tables(window: int, *, values: tuple[float, ...] | None = None) -> HostTables:
    """Tables of 40 random completions of 20 tokens, or of completions of few distinct log-ratios."""
    generator = torch.Generator().manual_seed(window)
    train = -3.0 * torch.rand(40, 20, generator=generator)
    noise = 0.1 * torch.randn(40, 20, generator=generator)
    if values is not None:
        noise = torch.tensor(values)[torch.randint(0, len(values), (40, 20), generator=generator)]
    return rs.summarize(train, train - noise, torch.ones(40, 20, dtype=torch.bool)).to_host().top


def stored(top: HostTables) -> HostTables:
    """Reads tables back from a journal's text."""
    return HostTables.from_json(json.loads(json.dumps(top.to_json())))


@pytest.mark.parametrize("values", [None, (0.0, 0.1, -0.3)])
def test_rows_that_cannot_enter_a_total_do_not_change_a_merge(values: tuple[float, ...] | None) -> None:
    """Stored tables give the merge of those in memory, whole and without the rows that cannot enter; ties included."""
    windows = [tables(window, values=values) for window in range(8)]
    expected = windows[0].merge(*windows[1:]).pack()
    first, *later = map(stored, windows)
    assert np.array_equal(first.merge(*later).pack(), expected, equal_nan=True)
    total = first.merge(*later[:3])
    assert np.array_equal(total.merge(*(top.entering(total) for top in later[3:])).pack(), expected, equal_nan=True)
    assert np.array_equal(HostTables.empty().merge(first).pack(), windows[0].pack(), equal_nan=True)


def test_stored_tables_of_nothing_are_empty() -> None:
    """Tables that an old journal lacks merge as empty ones."""
    nothing, empty = HostTables.from_json({}), HostTables.empty()
    assert np.array_equal(nothing.merge(nothing.entering(empty)).pack(), empty.pack())
