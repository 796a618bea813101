"""Packages that reports need beyond torch and numpy."""

from __future__ import annotations

from importlib.util import find_spec


def require(package: str, *, extra: str = "report") -> None:
    """Says how to get a package that is missing, before anything is read or drawn.

    Args:
        package: name of the import.
        extra: the extra of ratioscope that has it.

    Raises:
        ImportError: if it is missing.
    """
    if find_spec(package) is None:
        msg = f'this needs {package}: pip install "ratioscope[{extra}]"'
        raise ImportError(msg)
