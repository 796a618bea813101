"""What a recorder takes from an ``accelerate.Accelerator``: its trackers, its ranks and its settings.

accelerate is never imported: an accelerator is known by its attributes.
"""

from __future__ import annotations

import logging
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from ratioscope.config.lookup import UNKNOWN, lookup
from ratioscope.trackers.base import grouped
from ratioscope.trackers.registry import names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch.distributed as dist

    from ratioscope.trackers.base import Row, RunContext
    from ratioscope.trackers.registry import ReportTo

_SETTINGS = ("distributed_type", "num_processes", "mixed_precision", "gradient_accumulation_steps")

_logger = logging.getLogger("ratioscope")


class Host:
    """An accelerator, or none.

    Args:
        accelerator: an ``accelerate.Accelerator``; None without one.

    Raises:
        TypeError: if it is something else.
    """

    def __init__(self, accelerator: Any) -> None:
        if accelerator is not None and not (hasattr(accelerator, "log_with") and hasattr(accelerator, "trackers")):
            msg = f"got accelerator of type {type(accelerator).__name__}; expected an accelerate.Accelerator"
            raise TypeError(msg)
        self._accelerator = accelerator

    def report_to(self, asked: ReportTo) -> ReportTo:
        """What was asked for; where nothing was, each of the accelerator's ``log_with``.

        Those that ratioscope has no tracker for receive scalars through the accelerator's own tracker.
        """
        if asked is not None:
            return asked
        return [name if name in names() else Through(name, self._accelerator) for name in self._log_with()]

    def runs(self) -> Mapping[str, Callable[[], object | None]]:
        """For each of its ``log_with``, what asks for the live run; it answers None before ``init_trackers``."""
        return {name: partial(_live_run, self._accelerator, name) for name in self._log_with()}

    def group(self, asked: dist.ProcessGroup | None) -> Any:
        """The process group to merge over: every rank with batches of its own; None for the default one.

        Ranks that share a model by tensor, context or sequence parallelism receive the same batch, which is to be
        counted once. Where there is no other rank the group is made here, so every rank must call this.
        """
        parallelism = lookup(self._accelerator, "parallelism_config")
        if asked is not None or not (sharing := _names(parallelism, "non_dp_dim_names")):
            return asked
        mesh = lookup(self._accelerator, "torch_device_mesh")
        if mesh is None or mesh == UNKNOWN:
            _logger.warning("ratioscope: the ranks of %s are not known; each counts its batch", "+".join(sharing))
            return None
        if _names(parallelism, "dp_dim_names"):
            return mesh["dp"].get_group()
        import torch.distributed as dist

        return dist.new_subgroups(group_size=1)[0]

    def sections(self) -> dict[str, Mapping[str, Any]]:
        """The section of the run config."""
        if self._accelerator is None:
            return {}
        return {"accelerate": {name: lookup(self._accelerator, name) for name in _SETTINGS}}

    def _log_with(self) -> list[str]:
        return [] if self._accelerator is None else [_name(entry) for entry in self._accelerator.log_with]


class Through:
    """Sends scalars through a tracker of the accelerator's that ratioscope has none for.

    Args:
        name: the tracker's name.
        accelerator: the accelerator that has it, sooner or later.
    """

    background = False

    def __init__(self, name: str, accelerator: Any) -> None:
        self.name = name
        self._accelerator = accelerator
        self._tracker: Any = None

    def open(self, run: RunContext) -> bool:
        """Takes the accelerator's tracker; False before ``init_trackers``."""
        self._tracker = _tracker(self._accelerator, self.name)
        if self._tracker is None:
            return False
        _logger.warning("ratioscope: %s gets scalars only, through accelerate: there is no tracker for it", self.name)
        return True

    def write(self, row: Row) -> None:
        """Logs one window at its step."""
        if self._tracker is not None:
            self._tracker.log({**row.scalars, **grouped(row.logs)}, step=row.step)

    def close(self) -> None:
        """Lets go of the tracker, which ``accelerator.end_training`` ends."""
        self._tracker = None

    def where(self) -> str:
        """Whose run it is."""
        return "the run of accelerate's own tracker"


def _name(entry: Any) -> str:
    """The name of an entry of ``log_with``: a member of accelerate's enum, a name or a tracker."""
    return str(entry.value) if isinstance(entry, Enum) else str(getattr(entry, "name", entry))


def _tracker(accelerator: Any, name: str) -> Any:
    return next((tracker for tracker in accelerator.trackers if tracker.name == name), None)


def _live_run(accelerator: Any, name: str) -> object | None:
    """The live run behind one of the accelerator's trackers; None if it has not begun."""
    run: object = lookup(_tracker(accelerator, name), "tracker")
    return None if isinstance(run, str) and run == UNKNOWN else run


def _names(parallelism: Any, attribute: str) -> list[str]:
    found = lookup(parallelism, attribute)
    return list(found) if isinstance(found, list | tuple) else []
