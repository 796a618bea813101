"""Where the time of observing a batch goes, by torch's own profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.profiler import ProfilerActivity, profile

from benchmarks.harness import Row
from benchmarks.observe import FULL, TARGET_CASES, ours

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS, SHOWN = 10, 12


def run(*, short: bool) -> Iterator[Row]:
    """The operations that take most of the time of the full set, at the first target shape."""
    case = TARGET_CASES[0]
    observe = ours(case.make())[FULL]
    rounds = 3 if short else ROUNDS
    for _ in range(3):
        observe()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(rounds):
            observe()
    # Torch's dispatcher names some operations twice, with a prefix and without.
    events = [event for event in seen.key_averages() if event.key.startswith("aten::")]
    events.sort(key=lambda event: -event.self_cpu_time_total)
    whole = sum(event.self_cpu_time_total for event in events)
    operations = sum(event.count for event in events)
    yield Row("profile", str(case), "operations, nested ones too", operations / rounds, "count")
    for event in events[:SHOWN]:
        note = f"{event.count / rounds:.0f} calls"
        yield Row("profile", str(case), event.key, 100.0 * event.self_cpu_time_total / whole, "%", note=note)
    rest = sum(event.self_cpu_time_total for event in events[SHOWN:])
    yield Row("profile", str(case), "all others", 100.0 * rest / whole, "%")
