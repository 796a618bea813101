"""A tracker's own server in a process of its own, for tests that look at its page or send to it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
DROPPED = ("TRACKIO_", "GRADIO_", "MLFLOW_", "WANDB_", "TENSORBOARD_")


def environment(folder: Path) -> dict[str, str]:
    """Removes tracker settings from the environment, and everything that would use the network."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(DROPPED)}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        "TRACKIO_DIR": str(folder / "trackio"),
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "GRADIO_ANALYTICS_ENABLED": "False",
        "BROWSER": "true",  # the program of that name, which does nothing
    }


@contextmanager
def served(module: str, *arguments: str | Path, port: int, folder: Path, **more: str) -> Iterator[str]:
    """Runs a server until the end of the block, and yields its address."""
    address = f"http://127.0.0.1:{port}"
    with (folder / f"{module}.log").open("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            env=environment(folder) | more,
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_for(lambda: process.poll() is not None or answers(address), 90)
            log.seek(0)
            assert process.poll() is None, log.read()
            yield address
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def answers(address: str) -> bool:
    """Checks that a server answers."""
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except OSError:
        return False


def free_port() -> int:
    """Returns an unused port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(true: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Waits until the condition returns a true value, and returns it."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, "not seen in time"
        time.sleep(0.2)
    return found
