"""Cores for the CPU's kernel: torch's own team of threads where it can be had, else threads of ours."""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MOST_SPARE = 3
_MKL_THREADS = "MKL_Set_Num_Threads_Local"
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@cache
def _libraries() -> tuple[Any, ...]:
    """Where torch's own calls are resolved: what the process has loaded for all, then torch's library and its own."""
    found: list[Any] = []
    for path in (None, str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")):
        try:
            found.append(ctypes.CDLL(path))
        except (OSError, TypeError):  # another system, whose torch has other names for it
            continue
    return tuple(found)


@cache
def _openmp() -> Any:
    """The OpenMP library that torch uses, as far as it is one with GNU's entry point; None if not.

    Its threads keep their cores busy for a while after each of torch's operations, so that any other thread would have
    to share a core; they themselves begin at once.
    """
    for library in _libraries():
        if hasattr(library, "GOMP_parallel") and hasattr(library, "omp_set_num_threads"):
            library.GOMP_parallel.argtypes = (_CALLBACK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
            library.GOMP_parallel.restype = None
            return library
    return None


@cache
def _mkl_threads() -> Any:
    """Sets how many threads MKL has for the thread that calls, 0 for as many as before; None if torch has no MKL."""
    return next((found for library in _libraries() if (found := getattr(library, _MKL_THREADS, None))), None)


@contextmanager
def _alone() -> Iterator[None]:
    """Torch's operations take one thread, for the thread that calls.

    MKL's exponential else wakes all of them even for a handful of numbers, and waits until each had a core.
    """
    openmp, mkl_threads = _openmp(), _mkl_threads()
    before = torch.get_num_threads(), None if mkl_threads is None else mkl_threads(1)
    if openmp is not None:
        openmp.omp_set_num_threads(1)
    try:
        yield
    finally:
        if openmp is not None:
            openmp.omp_set_num_threads(before[0])
        if mkl_threads is not None:
            mkl_threads(before[1])


def n_threads() -> int:
    """How many there are to share the work: torch's, or one and those that torch leaves."""
    if _openmp() is not None:
        return torch.get_num_threads()
    return 1 + min(_MOST_SPARE, max(0, (os.cpu_count() or 1) - torch.get_num_threads()))


def share(work: Callable[[int], None], n: int) -> None:
    """Calls ``work`` with 0 to n - 1, each on a thread of its own, and returns when all of them have.

    Raises:
        Exception: what one of them raised.
    """
    raised: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # nobody else would hear of it
            raised.append(error)

    def drain(_: object) -> None:
        for number in numbers:
            guarded(number)

    openmp, numbers = _openmp(), iter(range(n))  # a team may be smaller than was asked for: then the first do it all
    if n == 1:
        with _alone():
            guarded(0)
    elif openmp is None:
        threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(1, n)]
        for thread in threads:
            thread.start()
        guarded(0)
        for thread in threads:
            thread.join()
    else:
        openmp.GOMP_parallel(_CALLBACK(drain), None, n, 0)
    if raised:
        raise raised[0]
