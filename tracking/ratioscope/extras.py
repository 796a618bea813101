"""Optional packages, which reports need beyond torch and numpy."""

from __future__ import annotations

from importlib.util import find_spec


def require(package: str, *, extra: str = "report") -> None:
    """Raises with the install command if a package is missing, before anything is read or plotted.

    Args:
        package: the package's import name.
        extra: the extra of ratioscope that installs it.

    Raises:
        ImportError: if the package is missing.
    """
    if find_spec(package) is None:
        msg = f'this needs {package}: pip install "ratioscope[{extra}]"'
        raise ImportError(msg)
