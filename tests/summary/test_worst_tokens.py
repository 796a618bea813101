"""Worst tokens and completions: exactly the largest of a window for any batching, and their details."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import ratioscope as rs
from ratioscope.summary.host import HostSummary

if TYPE_CHECKING:
    from ratioscope.state.worst import WorstRow, WorstToken

CAP = rs.Correction("token", "truncate", upper=1.2)
NAN = math.nan

Arrays = dict[str, np.ndarray[Any, Any]]


def random_rows(seed: int, rows: int, width: int, *, step: float | None = None) -> Arrays:
    """Makes ragged completions with holes; with ``step``, log-ratios lie on a grid, so that most of them tie."""
    rng = np.random.default_rng(seed)
    rollout = -rng.integers(1, 5, (rows, width)).astype(np.float32)
    d = rng.normal(0.0, 1.0, (rows, width))
    if step is not None:
        d = np.round(d / step) * step
    mask = (np.arange(width) < rng.integers(1, width + 1, rows)[:, None]) & (rng.random((rows, width)) < 0.9)
    return {
        "train": (rollout + d).astype(np.float32),
        "rollout": rollout,
        "mask": mask,
        "token_ids": rng.integers(0, 5 if step else 1000, (rows, width)),
        "advantages": rng.choice([-1.0, 0.5], rows).astype(np.float32),
    }


def record_of(arrays: Arrays) -> rs.Record:
    """Makes the record of one batch."""
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    options = {name: tensors.get(name) for name in ("token_ids", "advantages")}
    summary = rs.summarize(tensors["train"], tensors["rollout"], tensors["mask"], correction=CAP, **options)
    return record_with(summary)


def record_with(summary: rs.RatioSummary) -> rs.Record:
    """Makes a record of a summary."""
    return rs.Record(step=1, split="train", time=0.0, scalars=summary.metrics(), summary=summary.to_host())


def expected_token(arrays: Arrays, i: int, t: int) -> dict[str, Any]:
    """Computes the expected details of a token from the arrays, without its fingerprint."""
    mask, ids = arrays["mask"][i], arrays["token_ids"][i]
    d = (arrays["train"][i] - arrays["rollout"][i]).astype(np.float64)
    before, after = [], []
    for back in range(1, 5):
        if t - back < 0 or not mask[t - back]:
            break
        before.insert(0, int(ids[t - back]))
    for ahead in (1, 2):
        if t + ahead >= len(mask) or not mask[t + ahead]:
            break
        after.append(int(ids[t + ahead]))
    return {
        "log_ratio": float(d[t]),
        "train_logp": float(arrays["train"][i, t]),
        "rollout_logp": float(arrays["rollout"][i, t]),
        "advantage": float(arrays["advantages"][i]),
        "token_id": int(ids[t]),
        "before": tuple(before),
        "after": tuple(after),
        "position": int(mask[:t].sum()),
        "row_tokens": int(mask.sum()),
        "row_log_ratio": float(np.float32(d[mask].sum())),
        "rank": 0,
    }


def details(worst: WorstToken | WorstRow) -> dict[str, Any]:
    """Returns the details of a token or completion without its fingerprint (a hash) and text (unknown here)."""
    assert {value for name, value in vars(worst).items() if name.endswith("text")} <= {None}
    return {name: value for name, value in vars(worst).items() if name != "row" and not name.endswith("text")}


@pytest.mark.parametrize("seed", range(3))
def test_worst_tokens_are_the_largest(seed: int) -> None:
    """The worst tokens equal a plain sort by absolute log-ratio, with all details of each."""
    arrays = random_rows(seed, 20, 30)
    size = np.where(arrays["mask"], np.abs(arrays["train"] - arrays["rollout"]), -1.0)
    order = np.argsort(-size, axis=None, kind="stable")[:32]
    wanted = [expected_token(arrays, *np.unravel_index(index, size.shape)) for index in order]  # type: ignore[arg-type]
    got = record_of(arrays).worst_tokens
    assert len(got) == 32
    for one, want in zip(got, wanted, strict=True):
        assert details(one) == {**want, "row_log_ratio": pytest.approx(want["row_log_ratio"], rel=1e-6)}


def test_worst_completions_are_the_largest() -> None:
    """The worst completions equal a plain sort by mean absolute log-ratio, identified by fingerprint."""
    arrays = random_rows(7, 30, 12)
    d, mask = arrays["train"].astype(np.float64) - arrays["rollout"], arrays["mask"]
    means = np.array([np.abs(row[kept]).mean() if kept.any() else -1.0 for row, kept in zip(d, mask, strict=True)])
    order = np.argsort(-means)[:8]
    record = record_of(arrays)
    assert [one.abs_mean for one in record.worst_rows] == pytest.approx(means[order], rel=1e-6)
    assert [one.tokens for one in record.worst_rows] == mask[order].sum(axis=1).tolist()
    assert [one.advantage for one in record.worst_rows] == arrays["advantages"][order].tolist()
    sums = [d[i][mask[i]].sum() for i in order]
    assert [one.log_ratio for one in record.worst_rows] == pytest.approx(sums, rel=1e-5)
    fingerprints = {one.row: one.row_log_ratio for one in record.worst_tokens}
    shared = [one for one in record.worst_rows if one.row in fingerprints]
    assert shared
    assert all(fingerprints[one.row] == one.log_ratio for one in shared)


@pytest.mark.parametrize("seed", range(5))
def test_ties_are_chosen_by_content_alone(seed: int) -> None:
    """With hundreds of ties, any distribution of completions over parts gives bit-equal tables."""
    arrays = random_rows(seed, 60, 12, step=1.0)
    whole = record_of(arrays).summary.top
    size = np.abs(arrays["train"] - arrays["rollout"])[arrays["mask"]]
    assert (size == np.sort(size)[-32]).sum() > 20
    rng = np.random.default_rng(seed)
    merged = HostSummary.empty(CAP)
    for part in np.array_split(rng.permutation(60), 7):
        merged = merged.merge(record_of({name: array[part] for name, array in arrays.items()}).summary)
    for name in ("log_ratios", "tokens", "rows"):
        assert np.array_equal(getattr(merged.top, name), getattr(whole, name), equal_nan=True), name


def test_ties_are_spread() -> None:
    """The tokens chosen among thousands of ties cover many completions, positions and ids."""
    shape = (64, 200)
    rng = np.random.default_rng(0)
    rollout = -rng.random(shape).astype(np.float32)
    record = record_of(
        {
            "train": rollout,
            "rollout": rollout,
            "mask": np.ones(shape, dtype=bool),
            "token_ids": rng.integers(0, 1000, shape),
            "advantages": np.ones(64, dtype=np.float32),
        }
    )
    assert len({one.row for one in record.worst_tokens}) > 16
    positions = [one.position for one in record.worst_tokens]
    assert min(positions) < 60
    assert max(positions) > 140


def test_padding_does_not_change_tables() -> None:
    """Padding on either side and values at masked-out positions change no table."""
    arrays = random_rows(3, 10, 15)
    plain = record_of(arrays).summary.top
    padded = {
        name: np.pad(array, ((0, 0), (4, 6)), constant_values=7) for name, array in arrays.items() if array.ndim > 1
    }
    padded["mask"] = np.pad(arrays["mask"], ((0, 0), (4, 6)))
    for name in ("train", "rollout", "token_ids"):
        padded[name] = np.where(padded["mask"], padded[name], 5)
    other = record_of({**padded, "advantages": arrays["advantages"]}).summary.top
    assert np.array_equal(other.tokens, plain.tokens, equal_nan=True)
    assert np.array_equal(other.rows, plain.rows, equal_nan=True)


def test_unknown_details_are_none() -> None:
    """Unknown advantages and ids are None and empty; a smaller window has fewer entries, an empty one none."""
    record = record_with(rs.summarize([[0.5, -1.5, NAN]], [[0.0, 0.0, 0.0]], [[1, 1, 1]], correction=CAP))
    assert [one.log_ratio for one in record.worst_tokens] == [-1.5, 0.5]
    assert {(one.advantage, one.token_id, one.before, one.after) for one in record.worst_tokens} == {
        (None, None, (), ())
    }
    (row,) = record.worst_rows
    assert (row.abs_mean, row.log_ratio, row.tokens, row.advantage) == (1.0, -1.0, 2, None)
    nothing = record_with(rs.RatioSummary.empty())
    assert nothing.worst_tokens == nothing.worst_rows == ()


def test_worst_survive_json() -> None:
    """Worst tokens and completions are equal after a round trip of the record through JSON, which stays small."""
    record = record_of(random_rows(1, 20, 30))
    text = json.dumps(record.to_json()["state"]["top"], allow_nan=False)
    again = rs.Record.from_json(json.loads(json.dumps(record.to_json(), allow_nan=False)))
    assert again.worst_tokens == record.worst_tokens
    assert again.worst_rows == record.worst_rows
    assert len(text) < 12_000


def test_tables_are_read_by_column_name() -> None:
    """Unknown columns of a stored table are ignored, and missing ones are unknown."""
    data = record_of(random_rows(1, 20, 30)).to_json()
    table = data["state"]["top"]["tokens"]
    gone = table["columns"].index("token_id")
    table["columns"][gone] = "something_new"
    again = rs.Record.from_json(json.loads(json.dumps(data)))
    assert {one.token_id for one in again.worst_tokens} == {None}
    assert len(again.worst_tokens) == 32


def test_older_journals_are_read() -> None:
    """A record from before positions, lengths and tables keeps its data and has none of these."""
    record = record_of(random_rows(1, 30, 30))
    data = json.loads(json.dumps(record.to_json()))
    state = data["state"]
    for name in ("lengths", "top"):
        del state[name]
    for kind in ("sums", "counts"):
        state[kind] = {key: value for key, value in state[kind].items() if not key.startswith(("position", "turn"))}
    old = rs.Record.from_json(data)
    assert old.worst_tokens == old.worst_rows == ()
    metrics = old.summary.metrics()
    new = ("ratioscope/position/", "ratioscope/turn/", "ratioscope/length/", "ratioscope/sequence/pareto_k")
    assert {key for key in record.scalars if key not in metrics} == {
        key for key in record.scalars if key.startswith(new)
    }
    assert all(metrics[key] == record.scalars[key] for key in metrics)
    assert "ratioscope/sequence/pareto_k" not in old.summary.merge(record.summary).metrics()


def test_an_invalid_token_changes_the_fingerprint() -> None:
    """A completion whose first token lacks a log-probability has another fingerprint than with it."""
    rollout = torch.zeros(2, 3)
    rollout[0, 0] = torch.nan
    summary = rs.summarize(torch.zeros(2, 3), rollout, torch.ones(2, 3), token_ids=torch.zeros(2, 3, dtype=torch.long))
    assert len({row[0].item() for row in summary.top.rows[:2, 2:3]}) == 2
