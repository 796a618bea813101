"""Right to write a journal: one process at a time, also on a file system without locks."""

from __future__ import annotations

import errno
import os
import warnings
from typing import TYPE_CHECKING

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from ratioscope.journal.schema import JournalError

if TYPE_CHECKING:
    from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has locks of its own
    fcntl = None  # type: ignore[assignment]

NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
"""Errors of a file system without locks."""


def check_folder(folder: Path) -> None:
    """Refuses a folder through which another user could redirect the journal."""
    if folder.is_symlink():
        msg = f"{folder} is a symbolic link; a journal is only written to a real folder. Remove the link, or choose "
        msg += "another output directory."
        raise JournalError(msg)
    if hasattr(os, "getuid") and folder.stat().st_uid not in (os.getuid(), 0):
        msg = f"{folder} belongs to user {folder.stat().st_uid}, not to you; choose another output directory"
        raise JournalError(msg)


def take_lock(path: Path) -> BaseFileLock:
    """Takes the right to write a journal's file. The system gives it back when the process ends, however it ends.

    Without locks of the file system a file beside it names the process; it counts no longer once that has ended.

    Raises:
        JournalError: if another process has it.
        OSError: if the lock's file cannot be opened, or is a symbolic link.
    """
    # Any thread may close the journal. A forked worker drops its copy of the lock by itself, so that it does not hold
    # the lock on after its parent was killed.
    lock: BaseFileLock = FileLock(path.with_name(f"{path.name}.lock"), thread_local=False)
    owner = SoftFileLock(path.with_name(f"{path.name}.owner"), thread_local=False)
    try:
        try:
            with warnings.catch_warnings():  # of the soft lock that filelock takes itself after ENOSYS
                warnings.simplefilter("ignore")
                lock.acquire(blocking=False)
        except (OSError, NotImplementedError) as error:
            if isinstance(error, OSError) and error.errno not in NO_LOCKS:
                raise
            lock = owner
            lock.acquire(blocking=False)
    except Timeout as error:
        msg = (
            f"another process writes {path.parent}; give each run an output directory of its own, "
            "and deliver from a journal when its training has ended"
        )
        if lock is owner:
            msg += f". The file system has no locks: if no process writes there, remove {lock.lock_file}"
        raise JournalError(msg) from error
    return lock


def has_locks(path: Path) -> bool:
    """Returns whether the file system has the locks that SQLite needs."""
    if fcntl is None:
        return True
    # On a file of its own: to close a file gives up all locks that the process has on it.
    probe = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.lockf(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in NO_LOCKS
    finally:
        os.close(probe)
    return True
