"""What ``ratioscope run`` puts into every Python process of the program it starts.

Python imports a module of this name at its start. It only arranges for a function to be called once a certain module
has been imported; most processes of a program never import it, and then nothing happens. Standard library only.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import json
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

VARIABLE = "RATIOSCOPE_RUN"
"""Environment variable with ``{"after": {module: "package.module:function"}, "options": {...}}``."""


class _Waiting(importlib.abc.MetaPathFinder):
    """Finds the modules that are waited for, each once, by whatever finder comes after this one."""

    def __init__(self, after: dict[str, str], options: dict[str, object]) -> None:
        self._after, self._options = after, options

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        function = self._after.pop(fullname, None)
        spec = None if function is None else importlib.util.find_spec(fullname)
        if function is not None and spec is not None and spec.loader is not None:
            self._call_after(spec.loader, function)
        return spec

    def _call_after(self, loader: importlib.abc.Loader, function: str) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            try:
                name, _, attribute = function.partition(":")
                getattr(importlib.import_module(name), attribute)(module, self._options)
            except Exception as error:
                warnings.warn(f"ratioscope could not be attached and records nothing: {error!r}", stacklevel=2)

        loader.exec_module = exec_module  # type: ignore[method-assign]  # this loader is of this module alone


def _stand_aside() -> None:
    """Has the machine's own module of this name, which this one hides, run as it would have."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != here]
    own = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ImportError:
        sys.modules[__name__] = own


def _begin() -> None:
    order = json.loads(os.environ.get(VARIABLE, "{}"))
    if order.get("after"):
        sys.meta_path.insert(0, _Waiting(order["after"], order["options"]))


if __name__ == "sitecustomize":
    _stand_aside()
    _begin()
