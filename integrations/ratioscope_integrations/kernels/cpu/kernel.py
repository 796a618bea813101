"""Making of the CPU kernel: another process compiles it, and this one loads the result.

Compiling takes some twenty seconds, in which a fork would inherit the compiler's locks and an exit would end it badly.
The other process is killed at the exit, and neither a fork nor the exit waits for it. Loading takes about a second, for
which both wait.

Needs numba, which vLLM installs, and no C compiler. numba is imported only while the result is loaded.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratioscope_integrations.kernels.cpu.reduction import CpuKernel

COMPILE_S = 600.0
"""Seconds that the compiling process may take; it has a low priority."""
FORK_WAIT_S, EXIT_WAIT_S = 2.0, 5.0
"""Seconds that a fork and the exit wait at most for a kernel that is being loaded."""

_PACKAGE = "ratioscope_integrations.kernels.cpu"
_ENTRIES = (("rows", "reduce_rows"), ("finish", "finish"))
"""Compiled functions that are called from Python; the others are compiled into these."""


def make() -> CpuKernel:
    """Compiles the kernel in another process and loads it.

    Raises:
        ImportError: if numba is not installed.
        RuntimeError: if the compiler failed.
        OSError: if no process can be started.
    """
    with TemporaryDirectory(prefix="ratioscope-kernel-", ignore_cleanup_errors=True) as folder:
        _builder.compile(Path(folder))
        return _builder.load(Path(folder))


def compile_into(folder: Path) -> None:
    """Compiles the kernel in this process, and stores the result in a folder."""
    if hasattr(os, "nice"):
        os.nice(10)
    _call(_cached(folder))


class _Builder:
    """Compiling process of this process, and the lock that is held while its result is loaded."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._loading = threading.Lock()
        self._is_held = self._is_ending = self._has_hooks = False

    def compile(self, folder: Path) -> None:
        """Runs the compiling process to its end."""
        self._add_hooks()
        call = f"import pathlib, sys; from {__name__} import compile_into; compile_into(pathlib.Path(sys.argv[1]))"
        hidden = {"CUDA_VISIBLE_DEVICES": "", "RATIOSCOPE_KERNELS": "0", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", call, str(folder)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **hidden},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # an interrupt from the terminal is meant for the training
        )
        try:
            _, errors = self._process.communicate(timeout=COMPILE_S)
        finally:
            self._process.kill()
        self._end_thread_at_exit()
        if self._process.returncode:
            msg = f"the compiler ended with status {self._process.returncode}: {errors.decode(errors='replace')[-500:]}"
            raise (ImportError if b"No module named" in errors else RuntimeError)(msg)

    def load(self, folder: Path) -> CpuKernel:
        """Loads the result. No batch can make it compile anything later: that would stop a training step."""
        with self._loading:
            self._end_thread_at_exit()
            functions = _cached(folder)
            kernel = _call(functions)
            for function in functions:
                function.disable_compile()
            return kernel

    def _end_thread_at_exit(self) -> None:
        if self._is_ending:
            raise SystemExit  # ends this thread without a word

    def _add_hooks(self) -> None:
        if not self._has_hooks:
            self._has_hooks = True
            atexit.register(self._end)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._release)

    def _hold(self) -> None:
        self._is_held = self._loading.acquire(timeout=FORK_WAIT_S)

    def _release(self) -> None:
        if self._is_held:
            self._is_held = False
            self._loading.release()

    def _end(self) -> None:
        self._is_ending = True
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        self._loading.acquire(timeout=EXIT_WAIT_S)


_builder = _Builder()


def _cached(folder: Path) -> list[Any]:
    """Returns the compiled functions, which store their machine code in a folder, or find it there."""
    config: Any = import_module("numba.core.config")
    functions = [getattr(import_module(f"{_PACKAGE}.{module}"), name) for module, name in _ENTRIES]
    before, config.CACHE_DIR = config.CACHE_DIR, str(folder)
    try:
        for function in functions:
            function.enable_caching()
    finally:
        config.CACHE_DIR = before
    return functions


def _call(functions: list[Any]) -> CpuKernel:
    """Returns a kernel after its first call, which has each function compiled or found.

    Raises:
        RuntimeError: if a function was neither found nor compiled.
    """
    kernel: CpuKernel = import_module(f"{_PACKAGE}.reduction").first_call()
    if not all(function.signatures for function in functions):
        msg = "the kernel declined its first batch"
        raise RuntimeError(msg)
    return kernel
