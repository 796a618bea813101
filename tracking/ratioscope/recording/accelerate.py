"""AcceleratorHost: trackers, ranks and settings that a recorder takes from an ``accelerate.Accelerator``.

accelerate is never imported; an accelerator is recognized by its attributes.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ratioscope.config.lookup import UNKNOWN, lookup
from ratioscope.incidents import log
from ratioscope.trackers.base import grouped
from ratioscope.trackers.registry import names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratioscope.trackers.base import Row, RunContext
    from ratioscope.trackers.registry import ReportTo

_SETTINGS = ("distributed_type", "num_processes", "mixed_precision", "gradient_accumulation_steps")


class AcceleratorHost:
    """Reads an accelerator, if there is one.

    Args:
        accelerator: an ``accelerate.Accelerator``; None without one.

    Raises:
        TypeError: if it is another object.
    """

    def __init__(self, accelerator: Any) -> None:
        if accelerator is not None and not (hasattr(accelerator, "log_with") and hasattr(accelerator, "trackers")):
            msg = f"got accelerator of type {type(accelerator).__name__}; expected an accelerate.Accelerator"
            raise TypeError(msg)
        self._accelerator = accelerator

    def report_to(self, requested: ReportTo) -> ReportTo:
        """Returns the requested trackers; without a request, those of the accelerator's ``log_with``.

        A tracker that ratioscope does not have receives scalars through the accelerator's own one.
        """
        if requested is not None:
            return requested
        return [name if name in names() else ScalarTracker(name, self._accelerator) for name in self._log_with()]

    def runs(self) -> Mapping[str, Callable[[], object | None]]:
        """Returns, by name in ``log_with``, a function that returns the live run; None before ``init_trackers``."""
        return {name: partial(_live_run, self._accelerator, name) for name in self._log_with()}

    def group(self, requested: dist.ProcessGroup | None) -> Any:
        """Returns the process group to merge over: all ranks with different batches; None for the default one.

        Ranks that share a model by tensor, context or sequence parallelism receive the same batch, which must be
        counted once. If every rank has that batch, a group of one rank is created, so every rank must call this.
        """
        parallelism = lookup(self._accelerator, "parallelism_config")
        if requested is not None or not (sharing := _names(parallelism, "non_dp_dim_names")):
            return requested
        mesh = lookup(self._accelerator, "torch_device_mesh")
        if mesh is None or mesh == UNKNOWN:
            log.warning("the ranks of %s are not known; each counts its batch", "+".join(sharing))
            return None
        if _names(parallelism, "dp_dim_names"):
            return mesh["dp"].get_group()
        return dist.new_subgroups(group_size=1)[0]

    def sections(self) -> dict[str, Mapping[str, Any]]:
        """Returns the section ``accelerate`` of the run config."""
        if self._accelerator is None:
            return {}
        return {"accelerate": {name: lookup(self._accelerator, name) for name in _SETTINGS}}

    def _log_with(self) -> list[str]:
        return [] if self._accelerator is None else [_name(entry) for entry in self._accelerator.log_with]


class ScalarTracker:
    """Sends scalars through an accelerator's tracker that ratioscope does not have.

    Args:
        name: the tracker's name.
        accelerator: the accelerator; it has the tracker after ``init_trackers``.
    """

    background = False

    def __init__(self, name: str, accelerator: Any) -> None:
        self.name = name
        self._accelerator = accelerator
        self._tracker: Any = None

    def open(self, run: RunContext) -> bool:
        """Attaches to the accelerator's tracker; False before ``init_trackers``."""
        self._tracker = _tracker(self._accelerator, self.name)
        if self._tracker is None:
            return False
        log.warning("%s gets scalars only, through accelerate: there is no tracker for it", self.name)
        return True

    def write(self, row: Row) -> None:
        """Logs one window at its step."""
        if self._tracker is not None:
            self._tracker.log({**row.scalars, **grouped(row.logs)}, step=row.step)

    def close(self) -> None:
        """Detaches from the tracker, which ``accelerator.end_training`` ends."""
        self._tracker = None

    def where(self) -> str:
        """Returns a text that names the run's owner."""
        return "the run of accelerate's own tracker"


def _name(entry: Any) -> str:
    """Returns the name of an entry of ``log_with``: a member of accelerate's enum, a name or a tracker."""
    return str(entry.value) if isinstance(entry, Enum) else str(getattr(entry, "name", entry))


def _tracker(accelerator: Any, name: str) -> Any:
    return next((tracker for tracker in accelerator.trackers if tracker.name == name), None)


def _live_run(accelerator: Any, name: str) -> object | None:
    """Returns the live run behind one of the accelerator's trackers; None if it has not begun."""
    run: object = lookup(_tracker(accelerator, name), "tracker")
    return None if isinstance(run, str) and run == UNKNOWN else run


def _names(parallelism: Any, attribute: str) -> list[str]:
    dimensions = lookup(parallelism, attribute)
    return list(dimensions) if isinstance(dimensions, list | tuple) else []
