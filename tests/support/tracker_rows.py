"""Windows for the tests of trackers, as a recorder would hand them over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ratioscope.correction.bounds import Correction
from ratioscope.state.histogram import Bins, count, even_bins
from ratioscope.summary.host import HostSummary
from ratioscope.trackers.base import Row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

CONFIG: dict[str, Any] = {
    "schema": 1,
    "correction": {"enabled": True, "level": "token", "action": "truncate", "lower": None, "upper": 1.2},
    "vllm": {"mode": "colocate", "dtype": "bfloat16"},
}
TOKEN_TRUNCATE = Correction(level="token", action="truncate", upper=1.2)
TOKENS = "ratioscope/hist/token_log_ratio"
SEQUENCES = "ratioscope/hist/sequence_log_ratio"
FRACTION = "ratioscope/modified/fraction"


def normal_counts(seed: int, *, n: int = 1000, spread: float = 0.05) -> NDArray[np.int64]:
    """Bucket counts of ``n`` normal log-ratios."""
    values = torch.from_numpy(np.random.default_rng(seed).normal(scale=spread, size=n).astype(np.float32))
    counts: NDArray[np.int64] = count([(values, torch.ones(n, dtype=torch.bool))])[0].numpy()
    return counts


def normal_bins(seed: int, *, n: int = 1000, spread: float = 0.05, exponent: int = -6) -> Bins:
    """Bins of ``n`` normal log-ratios."""
    return even_bins(normal_counts(seed, n=n, spread=spread), exponent)


def make_row(
    step: int,
    *,
    split: str = "train",
    scalars: Mapping[str, float] | None = None,
    correction: Correction | None = TOKEN_TRUNCATE,
    histograms: Mapping[str, Bins] | None = None,
) -> Row:
    """Makes one window whose time depends only on the step."""
    prefix = "" if split == "train" else f"{split}/"
    given = {FRACTION: step / 100, "ratioscope/token/log_ratio/std": 0.05} if scalars is None else scalars
    if histograms is None:
        histograms = {TOKENS: normal_bins(step), SEQUENCES: normal_bins(step + 1, n=8, spread=0.3)}
    counts = {"token_log_ratio": normal_counts(step), "sequence_log_ratio": normal_counts(step + 1, n=8, spread=0.3)}
    record: Any = SimpleNamespace(
        step=step,
        split=split,
        correction=correction,
        scalars=given,
        events=(),
        counts=counts.__getitem__,
        summary=HostSummary.empty(correction),
        texts=(),
    )
    return Row(
        step=step,
        split=split,
        time=1_700_000_000.0 + step,
        scalars={prefix + key: value for key, value in given.items()},
        histograms={prefix + key: bins for key, bins in histograms.items()},
        record=record,
    )
