"""Trainings under faults, each in a process of its own.

    python tests/support/fault_scenarios.py serve

Reads one task as a JSON line and forks a process for it, so that the slow imports are paid once; says ``started`` and
``exited`` with the time, one JSON line each. Tasks:

* ``train``: a GRPO training that reports through ratioscope alone; writes ``result.json`` into its folder.
* ``reference``: the same training without trackers, one step each time that it is asked to, for as long as it is asked.
* ``module``: ``python -m MODULE ARGUMENTS``.
"""

from __future__ import annotations

import json
import os
import resource
import runpy
import signal
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from ratioscope_integrations.trainers.trl.callback import RatioscopeCallback
from tests.support import fake_engine

if TYPE_CHECKING:
    from collections.abc import Callable

GENERATION_S = 0.05
"""What the fake engine takes longer in each step, as a real one would."""
_SECONDS = struct.Struct("d")


def slow_reward(completions: list[str], **_: Any) -> list[float]:
    """A reward that varies and takes a while."""
    time.sleep(GENERATION_S)
    return fake_engine.length_reward(completions)


class Pace(TrainerCallback):
    """Times steps, each from the end of the one before, so that logging is in it; ``between`` is not."""

    def __init__(self, between: Callable[[int], None]) -> None:
        self.seconds: list[float] = []
        self.ended = 0.0
        self._between = between
        self._start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ends a step and begins the next one."""
        self.seconds.append(time.perf_counter() - self._start)
        self.ended = time.time()
        self._between(state.global_step)
        self._start = time.perf_counter()


def train(task: dict[str, Any]) -> None:
    """Trains, alternating with the reference step by step, and writes down how that went."""
    folder = Path(task["folder"])
    if limit := task.get("file_limit"):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    reference: list[float] = []
    with socket.create_connection(("127.0.0.1", task["reference"])) as other:

        def between(step: int) -> None:
            (folder / "step").write_text(str(step))
            other.sendall(b"g")
            reference.append(_SECONDS.unpack(_exactly(other, _SECONDS.size))[0])

        trainer = _trainer(folder / "out", max_steps=task["steps"])
        callback = RatioscopeCallback(trainer, report_to=task["report_to"], relay=True)
        pace = Pace(between)
        trainer.add_callback(callback)
        trainer.add_callback(pace)
        trainer.train()
    result = {
        "steps": pace.seconds,
        "reference": reference,
        "last_step": pace.ended,
        "returned": time.time(),
        "incidents": dict(callback.recorder.incidents.counts),
    }
    (folder / "result.json").write_text(json.dumps(result))


def reference(task: dict[str, Any]) -> None:
    """Waits for whoever connects, does a step at each byte and answers with its time."""
    server = socket.create_server(("127.0.0.1", task["port"]))
    peer: list[socket.socket] = []

    def between(_: int) -> None:
        asked = b""
        with suppress(OSError):  # whoever asked may have been killed
            if peer:
                peer[0].sendall(_SECONDS.pack(pace.seconds[-1]))
                asked = peer[0].recv(1)
        while not asked:
            peer[:] = [server.accept()[0]]
            with suppress(OSError):
                asked = peer[0].recv(1)

    trainer = _trainer(Path(task["folder"]) / "out", max_steps=1_000_000)
    if task["observed"]:
        trainer.add_callback(RatioscopeCallback(trainer, report_to="none", relay=True))
    pace = Pace(between)
    trainer.add_callback(pace)
    trainer.train()


def module(task: dict[str, Any]) -> None:
    """Runs a module as ``python -m`` does."""
    sys.argv[1:] = task["arguments"]
    runpy.run_module(task["module"], run_name="__main__", alter_sys=True)


def serve() -> None:
    """Forks a process for each line; only the forked processes return."""
    waiters: list[threading.Thread] = []
    for line in sys.stdin:
        task = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(task)
            return
        _say(started=child)
        waiters = [thread for thread in waiters if thread.is_alive()]
        waiters.append(threading.Thread(target=_wait, args=(child,), daemon=True))
        waiters[-1].start()


def _become(task: dict[str, Any]) -> None:
    folder = Path(task["folder"])
    os.environ.update(task["environment"])
    os.chdir(folder)
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)
    log = os.open(folder / f"{task['do']}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    {"train": train, "reference": reference, "module": module}[task["do"]](task)


def _wait(child: int) -> None:
    _, status = os.waitpid(child, 0)
    _say(exited=child, code=os.waitstatus_to_exitcode(status), at=time.time())


def _say(**what: Any) -> None:
    os.write(1, (json.dumps(what) + "\n").encode())


def _trainer(folder: Path, **settings: Any) -> Any:
    fake_engine.length_reward, kept = slow_reward, fake_engine.length_reward
    trainer = fake_engine.make_trainer(folder, **settings)
    fake_engine.length_reward = kept
    return trainer


def _exactly(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += (chunk := peer.recv(size - len(data)))
        if not chunk:
            msg = "the reference is gone"
            raise ConnectionError(msg)
    return data


if __name__ == "__main__":
    serve()
