"""What the TRL callback reads off a trainer, a batch and a record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import ProcessorMixin
from transformers.integrations import integration_utils

from ratioscope import metrics
from ratioscope.correction import Correction
from ratioscope.trackers.registry import names
from ratioscope_integrations.trainers.trl_config import trl_sections

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from ratioscope.record import Record


def rule(trainer: Any) -> Correction | None:
    """The correction in force; None where the trainer makes none."""
    corrects = hasattr(trainer.args, "vllm_importance_sampling_mode") and getattr(trainer.args, "use_vllm", False)
    return Correction.from_trl(trainer.args) if corrects else None


def tokenizer(trainer: Any) -> Any:
    """What decodes the trainer's tokens; None where nothing can."""
    found = getattr(trainer, "processing_class", None)
    if isinstance(found, ProcessorMixin):
        found = getattr(found, "tokenizer", None)
    return found if callable(getattr(found, "decode", None)) else None


def followed(report_to: str | list[str] | None) -> list[str]:
    """Those of the trainer's reporters that have a tracker of ours."""
    reported = [report_to] if isinstance(report_to, str) else list(report_to or ())
    return [name for name in reported if name in names()]


def reporters(trainer: Any) -> dict[str, object]:
    """The trainer's own callback for each backend it reports to."""
    known = integration_utils.INTEGRATION_TO_CALLBACK
    return {
        name: callback
        for callback in trainer.callback_handler.callbacks
        for name in names()
        if name in known and type(callback) is known[name]
    }


def sections(trainer: Any, batch: Mapping[str, torch.Tensor | None], *, arguments: bool) -> dict[str, dict[str, Any]]:
    """The run config, with the dtypes that only a batch can tell and, if wanted, all of the trainer's arguments."""
    sections = trl_sections(trainer)
    if arguments:
        sections["args"] = trainer.args.to_dict()
    received = {side: batch.get(f"{key}_per_token_logps") for side, key in (("train", "old"), ("rollout", "sampling"))}
    for side, logps in received.items():
        if logps is not None:
            sections["trainer"][f"{side}_logps_dtype"] = str(logps.dtype).removeprefix("torch.")
    return sections


def headline(record: Record) -> dict[str, float]:
    """The scalars that enter the trainer's own log."""
    prefix = "" if record.split == "train" else f"{record.split}_"
    wanted = metrics.keys("headline")
    return {prefix + key: value for key, value in record.scalars.items() if key in wanted}


def relayed(trainer: Any) -> dict[str, Any]:
    """The log that the trainer has just made, complete: callbacks take entries out of the one that passes them.

    The epoch stands in every log, also where there are several at one step; it is kept in that of the loss alone, so
    that a tracker has one point of it at a step.
    """
    row = dict(trainer.state.log_history[-1])
    del row["step"]
    if "loss" not in row:
        row.pop("epoch", None)
    return row


def why_absent(trainer: Any, train: object, rollout: object) -> str:
    """One clear message for a batch without a ratio."""
    args, kind = trainer.args, type(trainer).__name__
    if not hasattr(args, "vllm_importance_sampling_correction"):
        return f"{kind} computes no vLLM importance ratio; there is nothing to record"
    if not getattr(args, "use_vllm", False):
        return f"{kind} runs with use_vllm=False: one engine, so no importance ratio; there is nothing to record"
    missing = " and ".join(
        name for name, value in (("old_per_token_logps", train), ("sampling_per_token_logps", rollout)) if value is None
    )
    return f"raw ratio unavailable: the generated batch has no {missing}. Is vllm_importance_sampling_correction on?"
