"""Start-up module of ``ratioscope run`` for every Python process of the program.

Python imports a module with this name at its start. This one arranges only that a function is called after the import
of a certain module; most processes of a program never import that module. Standard library only.

A program may start other Pythons, from 3.6 on, which import this file too: its syntax is theirs, so annotations are
quoted, and it does nothing in them.
"""

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
    """Finds each awaited module once, through the finders after this one."""

    def __init__(self, after: "dict[str, str]", options: "dict[str, object]") -> None:
        self._after, self._options = after, options

    def find_spec(
        self,
        fullname: str,
        path: "Sequence[str] | None",  # the protocol of finders
        target: "ModuleType | None" = None,
    ) -> "ModuleSpec | None":
        function = self._after.pop(fullname, None)
        spec = None if function is None else importlib.util.find_spec(fullname)
        if function is not None and spec is not None and spec.loader is not None:
            self._call_after(spec.loader, function)
        return spec

    def _call_after(self, loader: "importlib.abc.Loader", function: str) -> None:
        execute = loader.exec_module

        def exec_module(module: "ModuleType") -> None:
            execute(module)
            try:
                name, _, attribute = function.partition(":")
                getattr(importlib.import_module(name), attribute)(module, self._options)
            except Exception as error:
                warnings.warn(f"ratioscope could not be attached and records nothing: {error!r}", stacklevel=2)

        loader.exec_module = exec_module  # type: ignore[method-assign]  # a loader belongs to one module


def _run_shadowed() -> None:
    """Runs the system's own sitecustomize, which this file shadows."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != here]
    own = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ImportError:
        sys.modules[__name__] = own


def _install() -> None:
    request = json.loads(os.environ.get(VARIABLE, "{}"))
    if request.get("after") and sys.version_info >= (3, 11):
        sys.meta_path.insert(0, _Waiting(request["after"], request["options"]))


if __name__ == "sitecustomize":
    _run_shadowed()
    _install()
