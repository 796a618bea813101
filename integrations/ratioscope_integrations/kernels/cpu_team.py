"""Cores for the CPU's kernel: torch's own team of threads where it can be had, else threads of ours."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

_MOST_SPARE = 3
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@cache
def _openmp() -> Any:
    """``GOMP_parallel`` of the OpenMP library that torch brings and has loaded; None where it has another one.

    Its threads keep their cores busy for a while after each of torch's operations, so that any other thread would have
    to share a core; they themselves begin at once.
    """
    found = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    try:
        parallel = ctypes.CDLL(str(found[0])).GOMP_parallel if len(found) == 1 else None
    except (OSError, AttributeError):
        return None
    if parallel is not None:
        parallel.argtypes, parallel.restype = (_CALLBACK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
    return parallel


@cache
def _mkl() -> Any:
    """MKL's own number of threads for the thread that calls, of which 0 is as before; None if torch has no MKL."""
    try:
        return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).MKL_Set_Num_Threads_Local
    except (OSError, AttributeError):
        return None


@contextmanager
def _alone() -> Iterator[None]:
    """Torch's exponentials are MKL's, which wakes all threads and waits for them even for a handful of numbers."""
    before = 0 if _mkl() is None else _mkl()(1)
    try:
        yield
    finally:
        if _mkl() is not None:
            _mkl()(before)


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

    parallel, numbers = _openmp(), iter(range(n))  # a team may be smaller than was asked for: then the first do it all
    if n == 1:
        with _alone():
            guarded(0)
    elif parallel is None:
        threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(1, n)]
        for thread in threads:
            thread.start()
        guarded(0)
        for thread in threads:
            thread.join()
    else:
        parallel(_CALLBACK(drain), None, n, 0)
    if raised:
        raise raised[0]
