"""What the TRL callback reads off a trainer, a batch and a record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import ProcessorMixin
from transformers.integrations import integration_utils

from ratioscope.correction.bounds import Correction
from ratioscope.metrics import catalogue
from ratioscope.trackers.registry import names
from ratioscope_integrations.trainers.trl.batches import ROLLOUT, SCORING, Sides, loss_reads_the_ratio
from ratioscope_integrations.trainers.trl.settings import trl_sections

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def sections(trainer: Any, sides: Sides | None, *, arguments: bool) -> dict[str, dict[str, Any]]:
    """The run config, with what only a batch can tell and, if wanted, all of the trainer's arguments."""
    sections = trl_sections(trainer)
    if arguments:
        sections["args"] = trainer.args.to_dict()
    if sides is not None:
        for side, logps in (("train", sides.train), ("rollout", sides.rollout)):
            sections["trainer"][f"{side}_logps_dtype"] = str(logps.dtype).removeprefix("torch.")
        sections["trainer"]["ratio_of"] = f"{sides.policy} policy to rollout"
    return sections


def headline(record: Record) -> dict[str, float]:
    """The scalars that enter the trainer's own log."""
    prefix = "" if record.split == "train" else f"{record.split}_"
    wanted = catalogue.keys("headline")
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


def why_not_in_loss(trainer: Any, inputs: Mapping[str, Any]) -> str:
    """One clear message for a loss that does not show both sides of a ratio."""
    kind = type(trainer).__name__
    if all(inputs.get(name) is None for name in ROLLOUT):
        return f"{kind} computes no vLLM importance ratio; there is nothing to record"
    text = f"raw ratio unavailable: the loss of {kind} is of no shape known here; expected log-probabilities as"
    text += f" {SCORING[0]} or as log_probs of the model's output, of the shape of the rollout's."
    return f"{text} Please report it with the trainer's version"


def why_absent(trainer: Any, batch: Mapping[str, Any]) -> str:
    """One clear message for a generated batch without a ratio."""
    args, kind = trainer.args, type(trainer).__name__
    if not hasattr(args, "vllm_importance_sampling_correction"):
        return f"{kind} computes no vLLM importance ratio; there is nothing to record"
    if not getattr(args, "use_vllm", False):
        return f"{kind} runs with use_vllm=False: one engine, so no importance ratio; there is nothing to record"
    if batch.get("importance_sampling_ratio") is not None:
        text = "raw ratio unavailable: this version of the trainer returns the corrected ratio without the rollout's"
        return f"{text} log-probabilities, sampling_per_token_logps. Upgrade TRL; 0.27.1 is the first that does"
    names = [name for name in ("old_per_token_logps", "sampling_per_token_logps") if batch.get(name) is None]
    missing = " and ".join(names)
    return f"raw ratio unavailable: the generated batch has no {missing}. Is vllm_importance_sampling_correction on?"


def not_applied(trainer: Any, sides: Sides) -> str | None:
    """What to say of a ratio that does not reach the loss, or is not known to; None where it does."""
    if not getattr(trainer.args, "vllm_importance_sampling_correction", False):
        if sides.policy == "current":
            text = "no correction applied: the ratio is the current policy's to the rollout's"
            return f"{text}, with the rollout's staleness in it, and is observed only"
        return "the trainer applies no vLLM correction: raw ratios are observed, not applied"
    if loss_reads_the_ratio(type(trainer)) is False:
        kind = type(trainer).__name__
        return f"the loss of {kind} reads no importance ratio: the correction is computed, not applied"
    return None
