"""Makes environments on top of this one, for packages that conflict with its own.

    python scripts/layers.py            the names
    python scripts/layers.py NAME       makes one if need be, and prints its interpreter

Each `requirements/layers/NAME.txt` describes one: its packages are installed in `build/layers/NAME` and hide those of
this environment; all other packages are taken from this environment. `scripts/check.py layers` runs its tests there:
`tests/layers/test_FIRST.py`, where FIRST is the name up to its first hyphen.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements" / "layers"
VARIABLE = "RATIOSCOPE_LAYER"
"""Environment variable that names the layer in which tests run."""


def names() -> list[str]:
    """Names of all layers."""
    return sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))


def tests(name: str) -> str:
    """Returns the file with a layer's tests."""
    return f"tests/layers/test_{name.partition('-')[0]}.py"


def make(name: str) -> Path:
    """Makes an environment unless it exists and is up to date; returns its interpreter.

    Raises:
        FileNotFoundError: if there is no such layer.
        CalledProcessError: if its packages cannot be installed.
    """
    requirements = REQUIREMENTS / f"{name}.txt"
    folder = ROOT / "build" / "layers" / name
    python = folder / "bin" / "python"
    below = sysconfig.get_path("purelib")
    wanted = hashlib.sha256(f"{sys.version} {below} {requirements.read_text()}".encode()).hexdigest()
    made = folder / "made-from"
    if made.exists() and made.read_text() == wanted:
        return python
    venv.create(folder, clear=True, symlinks=True, with_pip=False)
    (own,) = folder.glob("lib/python*/site-packages")
    # addsitedir instead of a plain path, which would leave out editable installations.
    (own / "below.pth").write_text(f"import site; site.addsitedir({below!r})\n")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--requirement"]
    subprocess.run([*pip, str(requirements)], check=True, stdout=sys.stderr)
    made.write_text(wanted)
    return python


def main() -> int:
    """Makes the layer named on the command line and prints its interpreter."""
    if len(sys.argv) < 2:
        print("\n".join(names()))
        return 0
    if sys.argv[1] not in names():
        print(f"got {sys.argv[1]!r}; expected one of {', '.join(names())}", file=sys.stderr)
        return 2
    print(make(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
