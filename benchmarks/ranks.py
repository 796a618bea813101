"""One of several real processes that merge their windows: python -m benchmarks.ranks FILE WORLD ROUNDS RANK."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

import ratioscope as rs
from benchmarks.batches import RULE, Case
from benchmarks.harness import interleave
from ratioscope.recording.ranks import all_merge
from ratioscope.summary.host import PACKED_SIZE


def main(meeting: Path, world: int, rounds: int, rank: int) -> None:
    """Times the merge and, for comparison, one all-reduce of equal size; rank 0 prints the medians."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    batch = Case(16, 256).make(seed=rank)
    summary = rs.summarize(batch.train, batch.rollout, batch.mask, correction=RULE, token_ids=batch.token_ids)
    plain = torch.zeros(PACKED_SIZE, dtype=torch.float64)
    # A fixed number of rounds, since every rank must take part in each collective.
    functions = {"merge": partial(all_merge, summary), "all_reduce": partial(dist.all_reduce, plain)}
    times = interleave(functions, seconds=0.0, least=rounds, most=rounds)
    if rank == 0:
        print(json.dumps(times))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
