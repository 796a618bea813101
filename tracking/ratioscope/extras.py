"""Optional packages, which reports need beyond torch and numpy."""

from __future__ import annotations

from importlib.util import find_spec


def require(package: str, *, extra: str = "report") -> None:
    """Checks that an optional package is installed, before anything is read or drawn.

    Args:
        package: name to import.
        extra: extra of ratioscope that installs it.

    Raises:
        ImportError: if it is missing; the message says how to install it.
    """
    if find_spec(package) is None:
        msg = f'this needs {package}: pip install "ratioscope[{extra}]"'
        raise ImportError(msg)
