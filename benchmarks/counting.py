"""Counts torch operations, which do not depend on the machine."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

SYNCS = {
    "_local_scalar_dense",
    "_unique2",
    "bincount",
    "equal",
    "is_nonzero",
    "item",
    "masked_select",
    "nonzero",
    "nonzero_static",
    "unique_consecutive",
    "unique_dim",
}
INDEXING = {"index", "index_put", "index_put_"}
COPIES = {"_to_copy", "copy_"}


class Counting(TorchDispatchMode):
    """Counts operations, waits for a device (copies between devices included), and allocated bytes.

    Attributes:
        waits: number of calls of each operation that waits.
        operations: number of operations of any kind, views included.
        allocated: bytes of all results that are neither a view nor written in place, including those freed again.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits: Counter[str] = Counter()
        self.operations = 0
        self.allocated = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Counts one operation and runs it."""
        name = func.overloadpacket.__name__
        kwargs = kwargs or {}
        self.operations += 1
        by_mask = name in INDEXING and any(part is not None and part.dtype == torch.bool for part in args[1])
        moved = name in COPIES and self._devices(name, args, kwargs) > 1
        if name in SYNCS or by_mask or moved:
            self.waits[name] += 1
        result = func(*args, **kwargs)
        results = result if isinstance(result, tuple | list) else (result,)
        for value, declared in zip(results, func._schema.returns, strict=False):
            if isinstance(value, torch.Tensor) and declared.alias_info is None:
                self.allocated += value.numel() * value.element_size()
        return result

    @staticmethod
    def _devices(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        if name == "copy_":
            return len({args[0].device, args[1].device})
        return len({args[0].device, kwargs.get("device") or args[0].device})
