"""Several real processes: the same record on every rank, and no deadlock.

This file is also the program of each rank: it runs every scenario in turn and writes its results to a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import ratioscope as rs
from ratioscope.state.slots import GENERATIONS, MAXIMA, SUMS
from ratioscope.state.tables import TOP_SIZE
from ratioscope.summary.host import PACKED_SIZE, HostSummary
from tests.support.reference import drift, noise_floor

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.distributed

LIMIT_S = 30
"""Seconds after which a waiting collective raises in every rank."""
START_S = 120
"""Further seconds for importing torch in several processes on a busy machine."""

RAW = "sampling/raw_importance_sampling_ratio/"
OWN = "ratioscope/"

RULES = {
    f"{level}_{action}": rs.Correction(level, action, lower=0.9, upper=1.2)  # type: ignore[arg-type]
    for level in ("token", "sequence")
    for action in ("truncate", "mask")
}
CAP = RULES["token_truncate"]
TOKENS = {2: (1, 400), 4: (1, 37, 400, 0)}
"""Completions of each rank, by number of ranks; as unequal as possible."""

Seen = dict[str, Any]


def share(rank: int, world: int) -> tuple[torch.Tensor, ...]:
    """Makes one rank's batch: ragged, with an empty completion, bad tokens and a different width."""
    rng = np.random.default_rng(100 + rank)
    rows, width = TOKENS[world][rank], 3 + 5 * rank
    rollout = -rng.exponential(1.0, (rows, width)).astype(np.float32)
    train = (rollout + rng.normal(0.0, 0.1, rollout.shape)).astype(np.float32)
    rollout[rng.random(rollout.shape) < 0.02] = np.nan
    mask = np.arange(width) < rng.integers(0 if rows > 1 else 1, width + 1, rows)[:, None]
    advantages = rng.normal(0.0, 1.0, rows).astype(np.float32)
    return tuple(torch.from_numpy(array) for array in (train, rollout, mask, advantages))


def observe(recorder: rs.Recorder, ratios: list[float]) -> None:
    """Observes one completion with these ratios."""
    train = torch.tensor([ratios]).log()
    recorder.observe(train, torch.zeros_like(train), torch.ones_like(train))


def seen(record: rs.Record | None) -> Seen | None:
    """Returns a record as JSON, without the time, which differs between ranks."""
    return None if record is None else {key: value for key, value in record.to_json().items() if key != "time"}


# --- scenarios of each rank ------------------------------------------------------------------------------------------


def union(rank: int, world: int) -> Seen:
    """Every rank observes its share under each of the rules."""
    records = {}
    for mode, rule in RULES.items():
        recorder = rs.Recorder(correction=rule)
        train, rollout, mask, advantages = share(rank, world)
        if len(train):
            recorder.observe(train, rollout, mask, advantages=advantages)
        records[mode] = seen(recorder.flush(step=1))
    return records


def noise(rank: int, world: int) -> Seen:
    """Every rank observes its share, and the first two score it twice."""
    recorder = rs.Recorder(correction=CAP)
    train, rollout, mask, _ = share(rank, world)
    recorder.observe(train, rollout, mask)
    if rank < 2:
        recorder.observe_noise(scored_again(rank, train), train, mask)
        recorder.observe_drift(scored_again(rank, train), train, mask, epsilon=(0.001, 0.001))
    return {"record": seen(recorder.flush(step=1))}


def scored_again(rank: int, train: torch.Tensor) -> torch.Tensor:
    """Returns the trainer's log-probabilities with rounding noise."""
    return train + 1e-3 * torch.randn(train.shape, generator=torch.Generator().manual_seed(rank))


def collectives(rank: int, world: int) -> Seen:
    """Counts the collectives of a flush: with data here and a failure there, then with nothing anywhere."""
    sizes: list[int] = []
    all_reduce, all_gather = dist.all_reduce, dist.all_gather

    def counting(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        sizes.append(tensor.numel())
        return all_reduce(tensor, *arguments, **options)

    def gathering(parts: list[torch.Tensor], tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        sizes.append(tensor.numel())
        return all_gather(parts, tensor, *arguments, **options)

    recorder = rs.Recorder(correction=CAP)
    with contextlib.suppress(ValueError):
        recorder.observe(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2 if rank == 0 else 3))
    dist.all_reduce, dist.all_gather = counting, gathering  # type: ignore[assignment]
    try:
        flushes = []
        for step in (1, 2):
            recorder.flush(step=step)
            flushes.append(list(sizes))
            sizes.clear()
    finally:
        dist.all_reduce, dist.all_gather = all_reduce, all_gather
    return {"sizes": flushes}


def one_raises(rank: int, world: int) -> Seen:
    """The last rank's observation raises; then everybody works."""
    recorder = rs.Recorder(correction=CAP)
    if rank == world - 1:
        with contextlib.suppress(ValueError):
            recorder.observe(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1))
    else:
        observe(recorder, [2.0, 1.0])
    first = seen(recorder.flush(step=1))
    observe(recorder, [1.5])
    return {"first": first, "second": seen(recorder.flush(step=2))}


def one_has_no_token(rank: int, world: int) -> Seen:
    """Rank 0 has ratios of 0.9 and 1.1, and no other rank a valid token."""
    recorder = rs.Recorder(correction=CAP)
    train = torch.tensor([[0.9, 1.1]]).log()
    recorder.observe(train, torch.zeros(1, 2), torch.full((1, 2), int(rank == 0)))
    return {"record": seen(recorder.flush(step=1))}


def one_never_observed(rank: int, world: int) -> Seen:
    """Only the last rank observes a batch; in the next window no rank does."""
    recorder = rs.Recorder(correction=CAP)
    if rank == world - 1:
        observe(recorder, [0.5, 2.0])
    return {"first": seen(recorder.flush(step=1)), "second": seen(recorder.flush(step=2))}


def decoded(rank: int, world: int) -> Seen:
    """Each rank has one token, whose id is its own number; a recorder that decodes on every rank."""
    recorder = rs.Recorder(decode=lambda ids: f"rank {ids[0]}")
    train = torch.tensor([[-1.0 - rank]])
    recorder.observe(train, torch.zeros(1, 1), torch.ones(1, 1), token_ids=torch.tensor([[rank]]))
    return {"record": seen(recorder.flush(step=1))}


def unequal(rank: int, world: int) -> Seen:
    """One ratio of 2 on rank 0 and three of 1 on rank 1; then nine of 1 and one of 5."""
    recorder = rs.Recorder()
    if rank < 2:
        observe(recorder, [2.0] if rank == 0 else [1.0] * 3)
    first = seen(recorder.flush(step=1))
    if rank < 2:
        observe(recorder, [1.0] * 9 if rank == 0 else [5.0])
    return {"first": first, "second": seen(recorder.flush(step=2))}


def bad_on_one(rank: int, world: int) -> Seen:
    """Only rank 0 has NaN tokens."""
    recorder = rs.Recorder(correction=CAP)
    observe(recorder, [1.0, float("nan")] if rank == 0 else [1.0, 1.0])
    return {"record": seen(recorder.flush(step=1))}


def counted_once(rank: int, world: int) -> Seen:
    """Four tokens on rank 0 and six on rank 1, in three micro-batches and with an eval window beside."""
    recorder = rs.Recorder()
    for size in ((1, 1, 2), (3, 2, 1), (), ())[rank]:
        observe(recorder, [1.0] * size)
    observe_eval = torch.zeros(1, rank + 1)
    recorder.observe(observe_eval, observe_eval, torch.ones(1, rank + 1), split="eval")
    record = recorder.flush(step=1)
    evaluation = recorder.flush(step=1, split="eval")
    assert record is not None
    return {"record": seen(record), "again": record.summary.metrics(), "eval": seen(evaluation)}


def trackers(rank: int, world: int) -> Seen:
    """Every rank has a tracker and is its node's first, as with one process a node."""
    os.environ["LOCAL_RANK"] = "0"
    tracker = rs.MemoryTracker()
    with rs.Recorder(report_to=tracker, correction=CAP) as recorder:
        for step in (1, 2):
            observe(recorder, [1.0, 1.5])
            recorder.flush(step=step)
    return {"opened": tracker.run is not None, "closed": tracker.closed, "rows": [row.step for row in tracker.rows]}


def weights_differ_on_one(rank: int, world: int) -> Seen:
    """On the last rank only, the applied weights differ from the rule's."""
    recorder = rs.Recorder(correction=CAP)
    train = torch.tensor([[1.1, 2.0]]).log()
    weights = rs.correct(train, torch.zeros(1, 2), torch.ones(1, 2), correction=CAP)
    recorder.observe(train, torch.zeros(1, 2), torch.ones(1, 2), applied=weights + int(rank == world - 1))
    return {"record": seen(recorder.flush(step=1))}


def stops(rank: int, world: int) -> Seen:
    """Half of the tokens have no log-probability, at which the run stops; only rank 0 diagnoses it."""
    with rs.Recorder(on_finding="stop") as recorder:
        for step in range(1, 1001):
            if rank != 1:
                observe(recorder, [1.01, float("nan")] * 200)
            recorder.flush(step=step)
            if recorder.should_stop:
                break
            time.sleep(0.01)
    return {"step": step, "stopped": recorder.should_stop, "knew": recorder._reaction.wants_stop}


SCENARIOS: tuple[Callable[[int, int], Seen], ...] = (
    union,
    noise,
    collectives,
    one_raises,
    one_has_no_token,
    one_never_observed,
    decoded,
    unequal,
    bad_on_one,
    counted_once,
    trackers,
    weights_differ_on_one,
    stops,
)


def main(rank: int, world: int, folder: Path) -> None:
    """Runs every scenario as one rank."""
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=LIMIT_S))
    results = {scenario.__name__: scenario(rank, world) for scenario in SCENARIOS}
    (folder / f"{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


# --- results -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Seen]:
    """Returns the results of each rank, by scenario."""
    world: int = request.param
    folder = tmp_path_factory.mktemp(f"ranks{world}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(world), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        outputs = [process.communicate(timeout=START_S + LIMIT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * world, "\n".join(outputs)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


def everywhere(ranks: list[Seen], scenario: str, name: str) -> Seen:
    """Returns a record after checking that all ranks have the same, except for delivery health on rank 0."""
    records = [rank[scenario][name] for rank in ranks]
    assert all({**record, "health": {}} == {**records[0], "health": {}} for record in records if record)
    assert records[0] is not None
    return dict(records[0])


def worst_of(summary: HostSummary) -> list[Any]:
    """Returns worst tokens and completions of a summary."""
    record = rs.Record(step=1, split="train", time=0.0, scalars={}, summary=summary)
    return [*record.worst_tokens, *record.worst_rows]


@pytest.mark.parametrize("mode", RULES)
def test_ranks_equal_one_process_on_the_union(ranks: list[Seen], mode: str) -> None:
    """Ranks with unequal shares give one process's counts, histograms and extremes exactly, and its sums to 1e-12."""
    record = rs.Record.from_json({**everywhere(ranks, "union", mode), "time": 0.0})
    shares = [share(rank, len(ranks)) for rank in range(len(ranks))]
    width = max(part[0].shape[1] for part in shares)
    train, rollout, mask = (
        torch.cat([torch.nn.functional.pad(part[k], (0, width - part[k].shape[1])) for part in shares])
        for k in range(3)
    )
    advantages = torch.cat([part[3] for part in shares])
    expected = rs.summarize(train, rollout, mask, correction=RULES[mode], advantages=advantages).to_host()
    assert record.world_size == len(ranks)
    assert np.array_equal(record.summary.counts, expected.counts)
    assert np.array_equal(record.summary.histograms, expected.histograms)
    assert np.array_equal(record.summary.lengths, expected.lengths)
    assert np.array_equal(record.summary.top.log_ratios, expected.top.log_ratios)
    got, want = (worst_of(summary) for summary in (record.summary, expected))
    assert [replace(worst, rank=0) for worst in got] == want
    alone = [worst_of(rs.summarize(*part[:3], advantages=part[3]).to_host()) for part in shares]
    assert all(replace(worst, rank=0) in alone[worst.rank] for worst in got)
    # A row's weight is the trainer's float32 sum, whose last bit may depend on how wide the rank's batch is.
    rounded = ("corrected/max", "corrected/-min") if mode.startswith("sequence") else ()
    for index, name in enumerate(MAXIMA):
        got, want = record.summary.maxima[index], expected.maxima[index]
        assert got == (pytest.approx(want, rel=1e-6) if name in rounded else want), name
    assert record.summary.maxima[GENERATIONS] == 1
    sizes = dict(zip(SUMS, expected.sums.tolist(), strict=True))
    for index, name in enumerate(SUMS):
        rel = 1e-7 if (name.startswith("corrected") and rounded) or name.startswith("gradient") else 1e-12
        prefix = name.rpartition("/")[0]
        scale = max(abs(sizes[name]), sizes.get(f"{prefix}/abs_d", 0.0))
        assert abs(record.summary.sums[index] - sizes[name]) <= rel * scale, name


def test_the_noise_floor_covers_all_ranks(ranks: list[Seen]) -> None:
    """The noise floor pools the ranks that measured it, as numpy does; the multiple covers all ranks' tokens."""
    scalars = everywhere(ranks, "noise", "record")["scalars"]
    pairs, mismatches = [], []
    for rank in range(len(ranks)):
        train, rollout, mask, _ = share(rank, len(ranks))
        mismatches.append((train - rollout)[mask].abs().double().numpy())
        if rank < 2:
            # Values above 0 are no log-probabilities; the noise makes some.
            pairs.append((scored_again(rank, train).numpy(), train.numpy(), (mask & (train <= 1e-4)).numpy()))
    joined = np.concatenate(mismatches)
    for key, value in noise_floor(*pairs, abs_d=joined[np.isfinite(joined)]).items():
        assert scalars[key] == pytest.approx(value, rel=1e-4), key


def test_drift_covers_all_ranks(ranks: list[Seen]) -> None:
    """Drift pools the ranks that observed it, as numpy does; other ranks do not count."""
    scalars = everywhere(ranks, "noise", "record")["scalars"]
    pairs = []
    for rank in range(min(2, len(ranks))):
        train, _, mask, _ = share(rank, len(ranks))
        pairs.append((scored_again(rank, train).numpy(), train.numpy(), (mask & (train <= 1e-4)).numpy()))
    for key, value in drift(*pairs, epsilon=(0.001, 0.001)).items():
        assert scalars[key] == pytest.approx(value, rel=1e-2 if key.endswith("outside") else 1e-3, abs=1e-7), key


def test_a_flush_is_two_collectives_of_fixed_size(ranks: list[Seen]) -> None:
    """Every rank makes the same two collectives in each flush, with data, with a failure and without data."""
    each_flush = [len(MAXIMA) + 1 + TOP_SIZE, PACKED_SIZE - len(MAXIMA) - TOP_SIZE]
    assert [rank["collectives"]["sizes"] for rank in ranks] == [[each_flush] * 2] * len(ranks)


def test_every_rank_stops_at_the_same_step(ranks: list[Seen]) -> None:
    """Only rank 0 has the finding; every rank stops at the same flush, without a further collective."""
    stopped = [rank["stops"] for rank in ranks]
    assert [result["knew"] for result in stopped] == [True] + [False] * (len(ranks) - 1)
    assert all(result["stopped"] for result in stopped)
    assert len({result["step"] for result in stopped}) == 1
    assert stopped[0]["step"] < 1000


def test_a_rank_that_raises_hangs_nothing(ranks: list[Seen]) -> None:
    """If one rank's observation raises, the others' data are reported with an event, and the next window works."""
    first, second = (everywhere(ranks, "one_raises", name) for name in ("first", "second"))
    assert first["events"] == ["observations that failed and are not in this record: 1"]
    assert first["scalars"][f"{OWN}counts/tokens"] == 2 * (len(ranks) - 1)
    assert first["scalars"][f"{RAW}max"] == pytest.approx(2.0)
    assert second["events"] == []
    assert second["scalars"][f"{OWN}counts/tokens"] == len(ranks)


def test_c10_a_rank_without_a_token_hangs_and_changes_nothing(ranks: list[Seen]) -> None:
    """A rank without a valid token pulls neither minimum nor mean towards 0."""
    scalars = everywhere(ranks, "one_has_no_token", "record")["scalars"]
    got = [scalars[RAW + name] for name in ("min", "mean", "max")]
    assert got == [pytest.approx(0.9), pytest.approx(1.0), pytest.approx(1.1)]
    assert scalars[f"{OWN}counts/tokens"] == 2
    assert scalars[f"{OWN}counts/rows_empty"] == len(ranks) - 1


def test_a_rank_that_never_observed_hangs_nothing(ranks: list[Seen]) -> None:
    """A rank that observed nothing gets the others' record, and a window that all left empty is None."""
    first = everywhere(ranks, "one_never_observed", "first")
    assert first["scalars"][f"{OWN}counts/tokens"] == 2
    assert first["scalars"][f"{OWN}counts/generations"] == 1
    assert first["events"] == []
    assert [rank["one_never_observed"]["second"] for rank in ranks] == [None] * len(ranks)


def test_texts_are_on_the_first_rank_only(ranks: list[Seen]) -> None:
    """Rank 0 has the texts of all ranks' worst tokens; except for these and health, all records are equal."""
    world = len(ranks)
    records = [rank["decoded"]["record"] for rank in ranks]
    assert records[0].pop("texts") == [["", f"rank {rank}", ""] for rank in reversed(range(world))]
    assert all(record | {"health": {}} == records[0] | {"health": {}} for record in records)


def test_c09_ranks_are_pooled_not_averaged(ranks: list[Seen]) -> None:
    """Means and quantiles cover all ranks' tokens; they are not means over ranks."""
    first, second = (everywhere(ranks, "unequal", name)["scalars"] for name in ("first", "second"))
    assert first[f"{RAW}mean"] == pytest.approx(1.25)
    assert second[f"{RAW}mean"] == pytest.approx(1.4)
    assert second[f"{OWN}token/raw/p95"] == pytest.approx(5.0**0.55, rel=0.02)


def test_c47_bad_tokens_on_one_rank_hang_nothing(ranks: list[Seen]) -> None:
    """Bad tokens on one rank alone are counted on every rank."""
    scalars = everywhere(ranks, "bad_on_one", "record")["scalars"]
    assert scalars[f"{OWN}counts/nan"] == 1
    assert scalars[f"{OWN}counts/tokens"] == 2 * len(ranks) - 1


def test_c48_tokens_are_counted_once(ranks: list[Seen]) -> None:
    """Four tokens on one rank and six on another are ten on every rank, also when the record is read again."""
    record = everywhere(ranks, "counted_once", "record")
    assert record["scalars"][f"{OWN}counts/tokens"] == 10
    assert record["scalars"][f"{OWN}counts/generations"] == 3
    assert [rank["counted_once"]["again"] for rank in ranks] == [record["scalars"]] * len(ranks)
    evaluation = everywhere(ranks, "counted_once", "eval")
    assert evaluation["split"] == "eval"
    assert evaluation["scalars"][f"{OWN}counts/tokens"] == sum(range(1, len(ranks) + 1))


def test_c49_only_the_worlds_first_rank_touches_a_tracker(ranks: list[Seen]) -> None:
    """Rank 0 opens, writes to and closes its tracker; no other rank does, though each is its node's first."""
    seen_by = [rank["trackers"] for rank in ranks]
    assert seen_by[0] == {"opened": True, "closed": True, "rows": [1, 2]}
    assert seen_by[1:] == [{"opened": False, "closed": False, "rows": []}] * (len(ranks) - 1)


def test_differing_weights_on_one_rank_affect_all(ranks: list[Seen]) -> None:
    """Differing weights on one rank withhold the corrected metrics on every rank, with one event."""
    record = everywhere(ranks, "weights_differ_on_one", "record")
    (event,) = record["events"]
    assert event.startswith("2 of the trainer's weights are not what the rule gives")
    assert not [key for key in record["scalars"] if "corrected" in key]
    assert record["scalars"][f"{RAW}max"] == pytest.approx(2.0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
