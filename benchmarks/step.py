"""Trains the demo with ratioscope active in every other step: python -m benchmarks.step RESULT STEPS FOLDER.

Steps come in pairs, one with and one without ratioscope, in an order that alternates from pair to pair, so that neither
a slow minute nor the progress of the training favours one of the two.
"""

from __future__ import annotations

import functools
import importlib
import json
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.stages import Stages
from ratioscope.delivery.fanout import Fanout
from ratioscope.journal.writer import Journal
from ratioscope.recording.observer import Observer
from ratioscope.recording.recorder import Recorder
from ratioscope.summary import kernels

METHODS = {
    "observe": (Observer, "observe"),
    "merge and statistics": (Recorder, "merge"),
    "write, whole": (Recorder, "write"),
    "write, journal commit": (Journal, "append"),
    "write, enqueue and inline trackers": (Fanout, "write"),
}
ROOT = Path(__file__).resolve().parent.parent
WARM_UP = 8
"""Steps that are not counted: the first ones load, compile and open trackers."""


class Toggle:
    """Wraps a trainer and its callback so that the callback is active in some steps only.

    Args:
        trainer: the trainer of the demo.
        callback: the trainer's RatioscopeCallback.

    Attributes:
        steps: of each step: whether the callback was active, seconds of the step, seconds within the callback.
        stages: times within the callback by stage, of the active steps.
        worked: like ``stages``, without the time in which the thread waited for a lock or a disk.
    """

    def __init__(self, trainer: Any, callback: Any) -> None:
        self.steps: list[tuple[bool, float, float]] = []
        self.stages, self.worked = Stages(METHODS), Stages(METHODS, clock=time.thread_time)
        self._on, self._inside, self._start = True, 0.0, 0.0
        for name in ("_generate_and_score_completions", "log"):
            self._gate(trainer, name)
        for name in ("on_step_end", "on_log"):
            setattr(callback, name, self._gated(getattr(callback, name), off=lambda *_, **__: None))
        inner = trainer.training_step
        trainer.training_step = functools.wraps(inner)(functools.partial(self._training_step, inner))

    def _gate(self, trainer: Any, name: str) -> None:
        """Makes a method of the trainer call the callback in active steps only."""
        wrapped = getattr(trainer, name)
        own = wrapped.__wrapped__

        def timed_own(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return own(*args, **kwargs)
            finally:
                self._inside -= time.perf_counter() - start

        (cell,) = [cell for cell in wrapped.__closure__ if cell.cell_contents is own]
        cell.cell_contents = timed_own

        setattr(trainer, name, self._gated(wrapped, off=own))

    def _gated(self, on: Any, *, off: Any) -> Any:
        """Selects one of two functions in each call; the time of ``on`` counts as time within the callback."""

        @functools.wraps(off)
        def gated(*args: Any, **kwargs: Any) -> Any:
            if not self._on:
                return off(*args, **kwargs)
            start = time.perf_counter()
            try:
                return on(*args, **kwargs)
            finally:
                self._inside += time.perf_counter() - start

        return gated

    def _training_step(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        """Times a step, from the start of one forward pass to the start of the next, logging included."""
        now = time.perf_counter()
        if self._start:
            self.steps.append((self._on, now - self._start, self._inside))
            if self._on:
                self.stages.end(whole=self._inside)
                self.worked.end(whole=self._inside)
        number = len(self.steps)
        self._on = (number % 2 == 0) != (number // 2 % 2 == 1)
        self._inside, self._start = 0.0, now
        return inner(*args, **kwargs)


def processor_seconds() -> float:
    """Processor time that the threads of ratioscope have used, in seconds."""
    import psutil  # type: ignore[import-untyped]

    ours = {thread.native_id for thread in threading.enumerate() if thread.name.startswith("ratioscope-")}
    return float(sum(used.user_time + used.system_time for used in psutil.Process().threads() if used.id in ours))


def main(result: Path, steps: int, folder: str) -> None:
    """Trains the demo and writes the medians in milliseconds."""
    sys.path.insert(0, str(ROOT / "examples"))
    example = importlib.import_module("grpo_vllm")
    from ratioscope_integrations.trainers.trl import RatioscopeCallback

    args = example.parse_args(["--steps", str(steps), "--output-dir", folder])
    trainer = example.build_trainer(args)
    kernels.ready("cpu")  # as in a run of more than a minute
    callback: Any
    (callback,) = (item for item in trainer.callback_handler.callbacks if isinstance(item, RatioscopeCallback))
    toggle = Toggle(trainer, callback)
    used = [0.0]
    ended = callback.on_train_end

    def before_the_end(*args: Any, **kwargs: Any) -> Any:
        used[0] = processor_seconds()
        return ended(*args, **kwargs)

    callback.on_train_end = before_the_end
    with toggle.stages.watching(), toggle.worked.watching():
        trainer.train()
    counted = toggle.steps[WARM_UP:]
    medians = {
        "with": statistics.median(seconds for on, seconds, _ in counted if on),
        "without": statistics.median(seconds for on, seconds, _ in counted if not on),
        "inside": statistics.median(inside for on, _, inside in counted if on),
        "background": used[0] / sum(on for on, _, _ in toggle.steps),
    }
    parts, worked = (stages.medians(skip=WARM_UP // 2) for stages in (toggle.stages, toggle.worked))
    seconds = {name: 1000.0 * value for name, value in medians.items()}
    result.write_text(json.dumps({"parts": parts, "worked": worked} | seconds))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
