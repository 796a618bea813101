"""Faults on loopback: a proxy that spoils connections, a stand-in for W&B's server, and a real MLflow server."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar

from tests.support import wandb_api

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

HISTORY = "wandb-history.jsonl"
SUMMARY = "wandb-summary.json"


def free_port() -> int:
    """Returns a port of 127.0.0.1 without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Proxy:
    """Forwards a loopback port to another, well or badly. A switch of the mode cuts all connections.

    Modes: ``pass``; ``hang`` accepts and never answers; ``503`` answers every request so; ``slow:SECONDS`` holds
    every answer back that long, after the server has done its work; ``closed`` does not listen.

    Args:
        upstream: port to forward to.
        mode: the first mode.
    """

    def __init__(self, upstream: int, mode: str = "pass") -> None:
        self.port = free_port()
        self.upstream = upstream
        self.accepted = 0
        self._mode = "closed"
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.switch(mode)

    @property
    def url(self) -> str:
        """Address to give to a client."""
        return f"http://127.0.0.1:{self.port}"

    def switch(self, mode: str) -> None:
        """Changes the mode and cuts every connection."""
        self._mode = mode
        if mode == "closed" and self._listener is not None:
            _end(self._listener)
            self._listener = None
        if mode != "closed" and self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        with self._lock:
            connections, self._open = self._open, set()
        for connection in connections:
            _end(connection)

    def close(self) -> None:
        """Stops listening."""
        self.switch("closed")

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._serve, args=(client, self._mode), daemon=True).start()

    def _serve(self, client: socket.socket, mode: str) -> None:
        self._keep(client)
        try:
            if mode == "hang":
                while client.recv(65536):
                    pass
            elif mode == "503":
                _refuse(client)
            elif mode != "closed":
                self._forward(client, float(mode.partition(":")[2] or 0))
        except (OSError, ValueError):  # ValueError: the other thread closed a socket that this one waits for
            pass
        finally:
            _end(client)

    def _forward(self, client: socket.socket, delay: float) -> None:
        with socket.create_connection(("127.0.0.1", self.upstream)) as server:
            self._keep(server)
            asked = False
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(65536)
                    if not data:
                        return
                    if source is server and asked:
                        time.sleep(delay)
                    asked = source is client
                    (server if source is client else client).sendall(data)

    def _keep(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _refuse(client: socket.socket) -> None:
    """Reads one request and answers 503."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += (chunk := client.recv(65536))
        if not chunk:
            return
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    left = int(lengths[0]) - len(body) if lengths else 0
    while left > 0:
        left -= len(chunk := client.recv(65536))
        if not chunk:
            return
    client.sendall(b"HTTP/1.1 503 Unavailable\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")


@dataclass
class WandbStored:
    """Contents of one run in the stand-in.

    Attributes:
        lines: history lines by their place in the run's file, so that a chunk sent twice is there once.
        config: as W&B keeps it.
        summary: what the client sent last.
        exit_code: None until the client says that the run is complete.
        opened: how often a client has opened or resumed it.
    """

    lines: dict[int, dict[str, Any]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None
    opened: int = 0

    @property
    def history(self) -> list[dict[str, Any]]:
        """Rows in order."""
        return [self.lines[place] for place in sorted(self.lines)]


class WandbServer:
    """A stand-in for W&B's server, good enough for the real client to go online and to resume.

    Its runs outlive ``kill`` and ``restart``.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.runs: dict[str, WandbStored] = {}
        self.asked: list[str] = []
        self.lock = threading.Lock()
        self._server: _Http | None = None
        self.restart()

    def restart(self) -> None:
        """Listens, with the runs that were there before."""
        self._server = _Http(("127.0.0.1", self.port), type("Handler", (_WandbHandler,), {"owner": self}))
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def kill(self) -> None:
        """Goes away in the middle of whatever it does."""
        server, self._server = self._server, None
        if server is not None:
            server.socket.close()
            server.cut()
            server.shutdown()

    def answer(self, operation: str, variables: dict[str, Any], host: str) -> dict[str, Any]:
        """The data of one GraphQL operation."""
        project = {"id": "p1", "name": variables.get("project") or "p", "entity": {"id": "e1", "name": "ent"}}
        viewer = {"id": "u", "entity": "ent", "username": "u", "email": "", "flags": "{}", "teams": {"edges": []}}
        match operation:
            case "UpsertBucket":
                name = variables.get("name") or "r"
                inserted = name not in self.runs
                run = self.runs.setdefault(name, WandbStored())
                run.opened += 1
                run.config |= json.loads(variables.get("config") or "{}")
                return {"upsertBucket": {"bucket": {**_bucket(name, run), "project": project}, "inserted": inserted}}
            case "RunResumeStatus":
                run_or_none = self.runs.get(variables["name"])
                bucket = None if run_or_none is None else _bucket(variables["name"], run_or_none)
                return {"model": {**project, "bucket": bucket}}
            case "CreateRunFiles":
                files = [
                    {"name": name, "uploadUrl": f"http://{host}/upload/{place}"}
                    for place, name in enumerate(variables.get("files", []))
                ]
                return {"createRunFiles": {"runID": "b1", "uploadHeaders": [], "files": files}}
        found = self.runs.get(str(variables.get("name") or variables.get("run") or variables.get("runName")))
        asked = wandb_api.answer(
            operation, variables, found, None if found is None else _bucket(variables.get("name", ""), found)
        )
        if asked is not None:
            return asked
        info = {"features": [], "cliVersionInfo": {}, "latestLocalVersionInfo": None}
        return {"serverInfo": info, "viewer": viewer, "model": None, "project": None}

    def receive(self, run_id: str, body: dict[str, Any]) -> None:
        """Stores a chunk of a run's files."""
        run = self.runs.setdefault(run_id, WandbStored())
        chunk = (body.get("files") or {}).get(HISTORY)
        if chunk is not None:
            run.lines |= {chunk["offset"] + place: json.loads(line) for place, line in enumerate(chunk["content"])}
        chunk = (body.get("files") or {}).get(SUMMARY)
        if chunk is not None:
            run.summary = json.loads(chunk["content"][-1])
        if body.get("complete"):
            run.exit_code = body.get("exitcode")


@contextmanager
def wandb_online(patch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    """Starts a stand-in that the real client of this process takes for W&B; no run may be live before."""
    import wandb

    server = WandbServer()
    for name in ("MODE", "RUN_ID", "RESUME", "ENTITY", "DIR", "NAME"):
        patch.delenv(f"WANDB_{name}", raising=False)
    address = f"http://127.0.0.1:{server.port}"
    for name, value in {"BASE_URL": address, "API_KEY": "a" * 40, "SILENT": "true", "PROJECT": "p"}.items():
        patch.setenv(f"WANDB_{name}", value)
    wandb.teardown()
    try:
        yield server
    finally:
        wandb.teardown()
        server.kill()


def _bucket(name: str, run: WandbStored) -> dict[str, Any]:
    tail = [json.dumps(row) for row in run.history[-1:]]
    return {
        "id": "b1",
        "name": name,
        "displayName": name,
        "description": "",
        "config": json.dumps(run.config),
        "sweepName": None,
        "summaryMetrics": json.dumps(run.summary),
        "logLineCount": 0,
        "historyLineCount": len(run.lines),
        "eventsLineCount": 0,
        "historyTail": json.dumps(tail),
        "eventsTail": "[]",
        "tags": [],
        "notes": "",
        "wandbConfig": json.dumps({"t": 1}),
    }


class _Http(ThreadingHTTPServer):
    """Can cut the connections that it has."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, *arguments: Any) -> None:
        self.connections: set[socket.socket] = set()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that a fault cut is no news."""

    def cut(self) -> None:
        for connection in list(self.connections):
            _end(connection)


class _WandbHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: ClassVar[WandbServer]

    def log_message(self, *_: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        self._answer({})

    def do_PUT(self) -> None:
        self._body()
        self._answer({})

    def do_POST(self) -> None:
        body = self._body()
        if self.path.endswith("/graphql"):
            query = json.loads(body)
            operation = query.get("operationName") or wandb_api.operation(query["query"])
            with self.owner.lock:
                self.owner.asked.append(operation)
                data = self.owner.answer(operation, query.get("variables") or {}, self.headers["Host"])
            self._answer({"data": data})
            return
        if self.path.endswith("/file_stream"):
            with self.owner.lock:
                self.owner.receive(self.path.split("/")[-2], json.loads(body))
        self._answer({})

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, data: dict[str, Any]) -> None:
        content = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class MlflowServer:
    """A real ``mlflow server`` with its store in a folder, which outlives ``kill`` and ``restart``."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.restart()

    def restart(self, timeout_s: float = 90.0) -> None:
        """Starts the server and waits until it answers."""
        self.start()
        deadline = time.monotonic() + timeout_s
        while True:
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=2):
                return
            if time.monotonic() > deadline:
                msg = f"mlflow server did not answer; see {self._folder / 'server.log'}"
                raise TimeoutError(msg)
            time.sleep(0.2)

    def start(self) -> None:
        """Starts the server."""
        store = [f"--backend-store-uri=sqlite:///{self._folder / 'mlflow.db'}", "--serve-artifacts"]
        place = ["--host=127.0.0.1", f"--port={self.port}", "--workers=1"]
        place += [f"--artifacts-destination={self._folder / 'artifacts'}"]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *store, *place],
                stdout=log,
                stderr=log,
                env=kept,
                cwd=self._folder,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kills the server and its workers."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
