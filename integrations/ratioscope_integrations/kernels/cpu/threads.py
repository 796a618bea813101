"""Threads for the CPU kernel: torch's own OpenMP team where torch has one, otherwise new threads."""

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
    """Libraries with torch's symbols: the process's global ones, then torch's library with its dependencies."""
    libraries: list[Any] = []
    for path in (None, str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")):
        try:
            libraries.append(ctypes.CDLL(path))
        except (OSError, TypeError):  # other systems have other names for the library
            continue
    return tuple(libraries)


@cache
def _openmp() -> Any:
    """OpenMP library that torch uses, if it has GNU's entry point; None otherwise.

    After each of torch's operations its threads keep their cores busy for a while: another thread would have to share a
    core with them, while they themselves start at once.
    """
    for library in _libraries():
        if hasattr(library, "GOMP_parallel") and hasattr(library, "omp_set_num_threads"):
            library.GOMP_parallel.argtypes = (_CALLBACK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
            library.GOMP_parallel.restype = None
            return library
    return None


@cache
def _mkl_threads() -> Any:
    """MKL's function that sets the number of threads for the calling thread, 0 for the default; None without MKL."""
    return next((call for library in _libraries() if (call := getattr(library, _MKL_THREADS, None))), None)


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Limits torch's operations to one thread, for the calling thread.

    Otherwise MKL's exponential wakes all threads even for a few numbers, and waits until each of them had a core.
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
    """Number of threads to share work: torch's, or without OpenMP one plus some of the cores that torch leaves."""
    if _openmp() is not None:
        return torch.get_num_threads()
    return 1 + min(_MOST_SPARE, max(0, (os.cpu_count() or 1) - torch.get_num_threads()))


def share(work: Callable[[int], None], n: int) -> None:
    """Calls ``work`` with 0 to n - 1, on up to n threads, and returns after the last call.

    Raises:
        BaseException: the first exception that a call raised.
    """
    raised: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # must not pass through C; raised again below
            raised.append(error)

    def drain(_: object) -> None:
        for number in numbers:
            guarded(number)

    openmp, numbers = _openmp(), iter(range(n))  # shared, since a team may have fewer threads than requested
    if n == 1:
        with _single_threaded():
            guarded(0)
    elif openmp is None:
        _call_on_new_threads(guarded, n)
    else:
        openmp.GOMP_parallel(_CALLBACK(drain), None, n, 0)
    if raised:
        raise raised[0]


def _call_on_new_threads(work: Callable[[int], None], n: int) -> None:
    """Calls ``work`` with 0 on this thread, and with 1 to n - 1 each on a new one."""
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(1, n)]
    for thread in threads:
        thread.start()
    work(0)
    for thread in threads:
        thread.join()
