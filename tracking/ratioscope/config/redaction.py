"""Redaction: a JSON-able copy of a value in which secrets are replaced.

A secret is recognized by the name it is stored under (``hub_token``, ``x-api-key``), by its shape (a password in a URL,
a token with a vendor's prefix), or because an environment variable with such a name holds the same text. The copy is
bounded in depth, in entries and in text length, so that no input can stall a run.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from pathlib import PurePath
from typing import Any

from ratioscope.secrets import MAX_TEXT, REDACTED, environment_secrets, is_secret_name, redact_text

__all__ = ["REDACTED", "redact"]

MAX_DEPTH = 12
"""Levels of nesting that are copied; deeper values are replaced by a note."""

MAX_ENTRIES = 1_000
"""Entries that are copied of one container."""

MAX_NODES = 20_000
"""Values that are copied in total."""

MAX_CHARACTERS = 1_000_000
"""Characters of text that are searched for secrets in total."""

CUT = "[cut]"
"""Replaces values beyond a bound."""


def redact(value: Any) -> Any:
    """Returns a JSON-able deep copy of a value without its secrets.

    Mappings, dataclasses, namespaces and named tuples become dicts with string keys, sequences and sets become lists,
    enums, paths and dtypes become text, non-finite floats become ``"nan"``, ``"inf"`` or ``"-inf"``, and any other
    object becomes the name of its type. Cycles and everything beyond the bounds are replaced by a short note.
    Redacting a copy again changes nothing.

    Args:
        value: any object; it is not changed.

    Returns:
        The copy, made only of dict, list, str, int, float, bool and None.
    """
    return _Redactor().copy(value, 0)


class _Redactor:
    """One pass over one value: the containers around the current value, and what may still be read."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.nodes_left = MAX_NODES
        self.characters_left = MAX_CHARACTERS
        self.known = environment_secrets()

    def copy(self, value: Any, depth: int) -> Any:
        """Copies one value; an error inside it costs only that value."""
        if self.nodes_left <= 0:
            return CUT
        self.nodes_left -= 1
        try:
            if isinstance(value, str | bytes | bool | int | float | Enum | PurePath) or value is None:
                return self.scalar(value)
            return self.container(value, depth)
        except Exception:
            return f"<unreadable {type(value).__name__}>"

    def text(self, value: str) -> str:
        """Removes secrets from a text; replaces it by a note once the pass has read too much."""
        if self.characters_left <= 0:
            return CUT
        self.characters_left -= min(len(value), MAX_TEXT)
        return redact_text(str.__str__(value), known=self.known)

    def scalar(self, value: Any) -> Any:
        """Copies a value without entries."""
        if isinstance(value, Enum):
            return self.text(value.value if isinstance(value.value, str) else str(value))
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bytes):
            return f"<{len(value)} bytes>"
        if isinstance(value, int):
            return int(value) if value.bit_length() < 64 else f"<integer of {value.bit_length()} bits>"
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else str(float(value))
        return self.text(str(value))

    def container(self, value: Any, depth: int) -> Any:
        """Copies a value with entries; names the type of any other object."""
        fields = _fields(value)
        if fields is None and not isinstance(value, list | tuple | AbstractSet):
            return self.other(value)
        if id(value) in self.open:
            return "[cycle]"
        if depth >= MAX_DEPTH:
            return CUT
        self.open.add(id(value))
        try:
            if fields is not None:
                return self.mapping(fields, depth)
            items = self.sequence(value, depth)
            return sorted(items, key=_sort_key) if isinstance(value, AbstractSet) else items
        finally:
            self.open.discard(id(value))

    def mapping(self, fields: Iterable[tuple[Any, Any]], depth: int) -> dict[str, Any]:
        """Copies named values; names that become equal are numbered."""
        entries = [*itertools.islice(fields, MAX_ENTRIES + 1)]
        names = {key.lower(): item for key, item in entries if isinstance(key, str)}
        named = any(is_secret_name(names.get(key)) for key in ("name", "key", "field"))
        copied: dict[str, Any] = {}
        for key, item in entries[:MAX_ENTRIES]:
            name = unique = self.text(key) if isinstance(key, str) else str(self.copy(key, depth + 1))
            count = itertools.count(2)
            while unique in copied:
                unique = f"{name}#{next(count)}"
            is_secret = is_secret_name(key) or (named and name.lower() == "value")
            copied[unique] = hidden(item) if is_secret else self.copy(item, depth + 1)
        if len(entries) > MAX_ENTRIES:
            copied[CUT] = "more entries"
        return copied

    def sequence(self, values: Iterable[Any], depth: int) -> list[Any]:
        """Copies unnamed values; a value after a secret's name (``--api-key X``, ``("api_key", X)``) is a secret."""
        entries = [*itertools.islice(values, MAX_ENTRIES + 1)]
        is_pair = len(entries) == 2
        copied: list[Any] = []
        follows_name = False
        for item in entries[:MAX_ENTRIES]:
            copied.append(hidden(item) if follows_name else self.copy(item, depth + 1))
            is_flag = isinstance(item, str) and item.startswith("-")
            follows_name = not follows_name and (is_flag or is_pair) and is_secret_name(item)
        if len(entries) > MAX_ENTRIES:
            copied.append(CUT)
        return copied

    def other(self, value: Any) -> Any:
        """Names the type of an object; unwraps scalars of array libraries."""
        kind = type(value)
        if kind.__name__ == "dtype" or kind.__name__.endswith("DType"):
            return self.text(str(value))
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic):
            return self.copy(value.item(), MAX_DEPTH)
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | types.MethodType):
            return self.text(value.__qualname__)
        return f"<{kind.__name__}>"


def hidden(value: Any) -> Any:
    """Returns a replacement for a value with a secret's name; None, booleans and empty text are no secrets."""
    return value if value is None or isinstance(value, bool) or value == "" else REDACTED


def _fields(value: Any) -> Iterator[tuple[Any, Any]] | None:
    """Returns the named values of a mapping, dataclass, namespace or named tuple, or None for anything else."""
    if isinstance(value, Mapping):
        return ((key, value[key]) for key in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ((field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value))
    argparse = sys.modules.get("argparse")
    if isinstance(value, types.SimpleNamespace) or (argparse is not None and isinstance(value, argparse.Namespace)):
        return iter(vars(value).items())
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        names: tuple[str, ...] = type(value)._fields  # type: ignore[attr-defined]
        return iter(zip(names, value, strict=True))
    return None


def _sort_key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
