"""The fault table: with any fault of a tracker's server, training continues, ends, and loses no record.

Each row trains with ``relay``, alternating step by step with the same training without trackers in another process,
under one fault; afterwards the server is well and ``ratioscope sync`` delivers the rest.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ratioscope as rs
from ratioscope.trackers.rows import RowMaker
from ratioscope_integrations.trackers.names import clean_name
from tests.support.faults import MlflowServer, Proxy, WandbServer, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.trackers,
    pytest.mark.trl,
    pytest.mark.slow,
    pytest.mark.timeout(480),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, and looks for processes in /proc"),
]

ROOT = Path(__file__).resolve().parents[2]
STEPS = 30
EXIT_S = 15.0
RATIO = 1.05
NOISE_S = 0.005
"""One switch interval of the interpreter, which is how long a thread of ours may keep the training thread waiting."""


class Forge:
    """Starts processes of ``fault_scenarios.py`` and notes when they end."""

    def __init__(self, log: Path) -> None:
        dropped = ("MLFLOW_", "WANDB_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        kept |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]), "OMP_NUM_THREADS": "1"}
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "support" / "fault_scenarios.py"), "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=kept,
        )
        self._started: queue.Queue[int] = queue.Queue()
        self.ended: dict[int, tuple[int, float]] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, do: str, folder: Path, *, environment: dict[str, str] | None = None, **task: Any) -> int:
        """Starts a process and returns its id."""
        assert self._process.stdin is not None
        task |= {"do": do, "folder": str(folder), "environment": environment or {}}
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        return self._started.get(timeout=120)

    def wait(self, process: int, timeout_s: float) -> tuple[int, float]:
        """Exit code of a process, and when it ended.

        Raises:
            TimeoutError: if it does not end; it is killed then.
        """
        deadline = time.monotonic() + timeout_s
        while process not in self.ended:
            if time.monotonic() > deadline:
                os.kill(process, signal.SIGKILL)
                msg = f"a process did not end within {timeout_s} s"
                raise TimeoutError(msg)
            time.sleep(0.02)
        return self.ended[process]

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            assert pipe is not None
            pipe.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if "started" in message:
                self._started.put(message["started"])
            else:
                self.ended[message["exited"]] = (message["code"], message["at"])


@dataclass
class Bench:
    """Runs trainings under faults and makes the checks that all faults share.

    Attributes:
        forge: starts processes.
        reference: port of the training without trackers.
        servers: by tracker.
        figures: one entry a row.
    """

    forge: Forge
    reference: int
    servers: dict[str, Any]
    figures: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A healthy server of each kind, a reference training, and a table of figures at the end."""
    folder = tmp_path_factory.mktemp("faults")
    forge = Forge(folder / "forge.log")
    mlflow = MlflowServer(folder)
    wandb = WandbServer()
    port = free_port()
    reference = forge.start("reference", folder, port=port, observed=True)
    shared = Bench(forge, port, {"mlflow": mlflow, "wandb": wandb})
    yield shared
    os.kill(reference, signal.SIGKILL)
    forge.close()
    wandb.kill()
    mlflow.kill()
    (folder / "figures.json").write_text(json.dumps(shared.figures, indent=1))
    print(f"\n{folder / 'figures.json'}")
    for row in shared.figures:
        print("  ".join(f"{key}={value}" for key, value in row.items()))


@dataclass
class Case:
    """One running row."""

    folder: Path
    process: int
    proxies: list[Proxy]
    servers: list[Any]

    def switch(self, mode: str) -> None:
        """Changes the fault that every connection meets."""
        for proxy in self.proxies:
            proxy.switch(mode)

    def until(self, step: int, timeout_s: float = 90.0) -> None:
        """Waits until a step has ended."""
        deadline = time.monotonic() + timeout_s
        while self.step() < step:
            if time.monotonic() > deadline:
                msg = f"step {step} did not come; {self.log()}"
                raise TimeoutError(msg)
            time.sleep(0.02)

    def step(self) -> int:
        """The last step that ended."""
        with suppress(OSError, ValueError):
            return int((self.folder / "step").read_text())
        return 0

    def log(self) -> str:
        """Returns the end of the training's output."""
        return (self.folder / "train.log").read_text()[-3000:]


def nothing(_: Case) -> None:
    """Leaves the fault as it is."""


def recover(case: Case) -> None:
    """Is well again 20 s after the training began."""
    case.until(1)
    time.sleep(20.0)
    case.switch("pass")


def restart(case: Case) -> None:
    """Kills the server at step 10 and starts it again 3 s later."""
    case.until(10)
    (server,) = case.servers
    server.kill()
    case.switch("pass")
    time.sleep(3.0)
    server.restart()


def break_off(case: Case) -> None:
    """Is well until step 15 and never answers after."""
    case.until(15)
    case.switch("hang")


def kill_core(case: Case) -> None:
    """Kills W&B's own process at step 10."""
    case.until(10)
    (core,) = children(case.process, "wandb-core")
    os.kill(core, signal.SIGKILL)


def fill(case: Case) -> None:
    """Fills the disk from step 5 on, earlier than the journal would."""
    case.until(5)
    out = case.folder / "out"
    if out.is_mount():
        with (out / "filler").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))


def children(parent: int, name: str) -> list[int]:
    """Ids of the processes of a parent that have this name."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit():
                command, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
                if command.startswith(name) and int(rest.split()[1]) == parent:
                    found.append(int(folder.name))
    return found


FAULTS: dict[str, tuple[str, Callable[[Case], None], dict[str, Any]]] = {
    "closed": ("closed", nothing, {}),
    "hang": ("hang", nothing, {}),
    "hang from step 15": ("pass", break_off, {}),
    "503": ("503", nothing, {}),
    "503 for 20 s": ("503", recover, {"steps": 200}),
    "slow": ("slow:2", nothing, {}),
    "killed and restarted": ("pass", restart, {}),
    "core killed": ("pass", kill_core, {}),
    "disk full": ("pass", nothing, {"disk": 384 * 1024}),
    "disk full at once": ("pass", fill, {"disk": 384 * 1024}),
}
TABLE = [
    *(
        pytest.param([tracker], fault, id=f"{fault}-{tracker}")
        for fault in FAULTS
        for tracker in ("mlflow", "wandb")
        if tracker != "mlflow" or fault not in ("core killed", "hang from step 15", "disk full at once")
    ),
    pytest.param(["mlflow", "wandb"], "hang", id="hang-both"),
]


@contextmanager
def small_disk(place: Path, size: int | None) -> Iterator[dict[str, int]]:
    """A file system of its own for a folder, or, where mounting is not allowed, the limit that a task takes instead."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if size is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield {} if size is None else {"file_limit": size}
        return
    try:
        yield {}
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def make_room(place: Path) -> None:
    """Frees the disk, as the user would."""
    if place.is_mount():
        subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)


@pytest.mark.parametrize(("trackers", "fault"), TABLE)
def test_fault(bench: Bench, tmp_path: Path, trackers: list[str], fault: str) -> None:
    """Training is as fast as without a tracker, raises nothing, ends soon, and every record arrives exactly once.

    A time that is out of bounds is measured once more, since others may have used the machine; nothing else is.
    """
    figures = run_row(bench, tmp_path / "1", trackers, fault)
    if not in_time(figures):
        print("again:", figures)
        figures = run_row(bench, tmp_path / "2", trackers, fault)
    bench.figures.append(figures)
    print(figures)
    assert in_time(figures)


def in_time(figures: dict[str, Any]) -> bool:
    """Checks the bound of the exit, and that steps are as fast as in the reference training."""
    fast = figures["step_ms"] < RATIO * figures["reference_ms"] + 1000 * NOISE_S
    return bool(fast and figures["exit_s"] < EXIT_S)


def run_row(bench: Bench, folder: Path, trackers: list[str], fault: str) -> dict[str, Any]:
    """Trains under a fault, delivers afterwards, checks the received rows, and returns the durations."""
    folder.mkdir()
    mode, act, options = FAULTS[fault]
    steps = options.get("steps", STEPS)
    proxies = {name: Proxy(server.port, mode if name in trackers else "pass") for name, server in bench.servers.items()}
    environment = addresses(proxies, folder)
    before = set(bench.servers["wandb"].runs)
    out = folder / "out"
    with small_disk(out, options.get("disk")) as limit, ExitStack() as stack:
        for proxy in proxies.values():
            stack.callback(proxy.close)
        task = {"report_to": trackers, "reference": bench.reference, "steps": steps, **limit}
        process = bench.forge.start("train", folder, environment=environment, **task)
        servers = [bench.servers[name] for name in trackers]
        case = Case(folder, process, [proxies[name] for name in trackers], servers)
        act(case)
        code, ended = bench.forge.wait(process, 150.0)
        assert code == 0, case.log()
        result = json.loads((folder / "result.json").read_text())
        make_room(out)
        early = len(missing(out))
        case.switch("pass")
        start = time.monotonic()
        deliver(bench, folder, environment)
        synced = time.monotonic() - start
        partial = "disk" in options
        for tracker in trackers:
            if tracker == "wandb":
                (run,) = set(bench.servers["wandb"].runs) - before
                rows = [row["train/global_step"] for row in bench.servers["wandb"].runs[run].history]
                check_wandb(rows, out, steps=steps, partial=partial)
            else:
                check_mlflow(
                    bench.servers["mlflow"].url,
                    environment["MLFLOW_EXPERIMENT_NAME"],
                    out,
                    steps=steps,
                    partial=partial,
                )
    typical, reference = (statistics.median(result[name][3:]) for name in ("steps", "reference"))
    figures = {
        "fault": fault,
        "tracker": "+".join(trackers),
        "step_ms": round(1000 * typical, 1),
        "reference_ms": round(1000 * reference, 1),
        "ratio": round(typical / reference, 3),
        "train_returned_s": round(result["returned"] - result["last_step"], 1),
        "exit_s": round(ended - result["last_step"], 1),
        "left_to_sync": early,
        "sync_s": round(synced, 1),
        "incidents": result["incidents"],
    }
    assert len(result["steps"]) == steps
    assert not [kind for kind in result["incidents"] if "Assertion" in kind]
    return figures


def test_a_killed_training_continues(bench: Bench, tmp_path: Path) -> None:
    """A killed and restarted training has one run, which contains every record of both attempts exactly once."""
    with ExitStack() as stack:
        proxies = {name: stack.enter_context(closing(Proxy(server.port))) for name, server in bench.servers.items()}
        environment = addresses(proxies, tmp_path)
        before = set(bench.servers["wandb"].runs)
        task = {"report_to": ["wandb", "mlflow"], "reference": bench.reference, "steps": 25}
        first = bench.forge.start("train", tmp_path, environment=environment, **task)
        case = Case(tmp_path, first, list(proxies.values()), list(bench.servers.values()))
        case.until(20)
        os.kill(first, signal.SIGKILL)
        second = bench.forge.start("train", tmp_path, environment=environment, **task)
        assert bench.forge.wait(second, 120.0)[0] == 0, case.log()
        deliver(bench, tmp_path, environment)
    (run,) = set(bench.servers["wandb"].runs) - before
    rows = [row["train/global_step"] for row in bench.servers["wandb"].runs[run].history]
    assert len(rows) > 40
    check_wandb(rows, tmp_path / "out", steps=25, partial=False)
    check_mlflow(
        bench.servers["mlflow"].url, environment["MLFLOW_EXPERIMENT_NAME"], tmp_path / "out", steps=25, partial=False
    )


def addresses(proxies: dict[str, Proxy], folder: Path) -> dict[str, str]:
    """Environment in which both clients find the server, and each test its own project."""
    return {
        "WANDB_BASE_URL": proxies["wandb"].url,
        "WANDB_API_KEY": "a" * 40,
        "WANDB_PROJECT": f"{folder.parent.name}-{folder.name}",
        "MLFLOW_TRACKING_URI": proxies["mlflow"].url,
        "MLFLOW_EXPERIMENT_NAME": f"{folder.parent.name}-{folder.name}",
    }


def deliver(bench: Bench, folder: Path, environment: dict[str, str]) -> None:
    """Runs ``ratioscope sync`` twice; the second call has nothing left to deliver."""
    for _ in range(2):
        arguments = {"module": "ratioscope", "arguments": ["sync", str(folder / "out")]}
        process = bench.forge.start("module", folder, environment=environment, **arguments)
        code, _ = bench.forge.wait(process, 60.0)
        assert code == 0, (folder / "module.log").read_text()[-3000:]
    assert (folder / "module.log").read_text().endswith("Nothing is missing.\n")


def missing(out: Path) -> list[int]:
    """Records that the journal does not know to be delivered."""
    connection = sqlite3.connect(out / "ratioscope" / "journal.sqlite")
    sql = "SELECT id FROM record WHERE id NOT IN (SELECT record FROM delivery)"
    found = [row[0] for row in connection.execute(sql)]
    connection.close()
    return found


def records(out: Path) -> list[rs.Record]:
    """All of the journal."""
    with rs.JournalReader(out) as journal:
        return list(journal.records(superseded=True))


def check_wandb(rows: list[int], out: Path, *, steps: int, partial: bool) -> None:
    """One row for each record, in order; where the journal has only a part, one for each step and one for the end."""
    wanted = [record.step for record in records(out)]
    if partial:
        assert len(wanted) < steps
        wanted = [*range(1, steps + 1), steps]
        rows = sorted(rows)
    assert rows == wanted


def check_mlflow(uri: str, experiment: str, out: Path, *, steps: int, partial: bool) -> None:
    """One run, and in it one point for each number of each record."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    (run,) = client.search_runs([found.experiment_id])
    points = {
        key: [(point.step, point.timestamp, point.value) for point in client.get_metric_history(run.info.run_id, key)]
        for key in run.data.metrics
    }
    logged = sorted(step for step, _, _ in points["loss"])
    assert (logged if partial else sorted(set(logged))) == list(range(1, steps + 1))
    assert all(count == 1 for series in points.values() for count in Counter(series).values())
    maker = RowMaker()
    for record in records(out):
        row = maker.make(record)
        for key, value in {**row.scalars, **row.logs}.items():
            name = clean_name(key)
            assert points[name].count((row.step, int(1000 * row.time), value)) == 1, (name, row.step)
    if not partial:
        total = sum(len({**row.scalars, **row.logs}) for row in map(RowMaker().make, records(out)))
        assert sum(map(len, points.values())) == total
