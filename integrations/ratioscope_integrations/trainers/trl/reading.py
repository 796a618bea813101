"""Facts that the TRL callback reads from a trainer, a batch and a record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import ProcessorMixin
from transformers.integrations import integration_utils

from ratioscope.correction.bounds import Correction
from ratioscope.metrics import catalogue
from ratioscope.trackers.registry import names
from ratioscope_integrations.trainers.trl.batches import OLD_LOGPS, ROLLOUT_LOGPS, TrlBatch
from ratioscope_integrations.trainers.trl.loss import SCORING, loss_reads_ratio
from ratioscope_integrations.trainers.trl.settings import trl_sections

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.record import Record


def rule(trainer: Any) -> Correction | None:
    """Returns the correction in force; None if the trainer makes none."""
    corrects = hasattr(trainer.args, "vllm_importance_sampling_mode") and getattr(trainer.args, "use_vllm", False)
    return Correction.from_trl(trainer.args) if corrects else None


def tokenizer(trainer: Any) -> Any:
    """Returns the trainer's tokenizer; None if it cannot decode."""
    processing = getattr(trainer, "processing_class", None)
    if isinstance(processing, ProcessorMixin):
        processing = getattr(processing, "tokenizer", None)
    return processing if callable(getattr(processing, "decode", None)) else None


def known_trackers(report_to: str | list[str] | None) -> list[str]:
    """Selects the trainer's reporters that ratioscope has a tracker for."""
    requested = [report_to] if isinstance(report_to, str) else list(report_to or ())
    return [name for name in requested if name in names()]


def reporters(trainer: Any) -> dict[str, object]:
    """Maps each backend that the trainer reports to onto the trainer's own callback for it."""
    classes = integration_utils.INTEGRATION_TO_CALLBACK
    return {
        name: callback
        for callback in trainer.callback_handler.callbacks
        for name in names()
        if name in classes and type(callback) is classes[name]
    }


def sections(trainer: Any, batch: TrlBatch | None, *, arguments: bool, noise_floor: int) -> dict[str, dict[str, Any]]:
    """Returns the sections of the run config, with facts that only a batch shows.

    Args:
        trainer: the trainer.
        batch: the first batch, or None if there is no ratio.
        arguments: whether to add all of the trainer's arguments.
        noise_floor: generations per measurement of the noise floor; 0 for none.
    """
    sections = trl_sections(trainer)
    if arguments:
        sections["args"] = trainer.args.to_dict()
    if noise_floor:
        sections["recorder"] = {"noise_floor": noise_floor}
    if batch is not None:
        for side, logps in (("train", batch.train_logps), ("rollout", batch.rollout_logps)):
            sections["trainer"][f"{side}_logps_dtype"] = str(logps.dtype).removeprefix("torch.")
        sections["trainer"]["ratio_of"] = f"{batch.policy} policy to rollout"
    return sections


def headline(record: Record) -> dict[str, float]:
    """Selects the scalars that enter the trainer's own log."""
    prefix = "" if record.split == "train" else f"{record.split}_"
    wanted = catalogue.keys("headline")
    return {prefix + key: value for key, value in record.scalars.items() if key in wanted}


def last_log(trainer: Any) -> dict[str, Any]:
    """Returns the complete log that the trainer has just made: callbacks remove entries from the one they receive.

    Every log has the epoch, and one step may have several logs. Only that with the loss keeps it, so that a tracker
    receives one epoch per step.
    """
    row = dict(trainer.state.log_history[-1])
    del row["step"]
    if "loss" not in row:
        row.pop("epoch", None)
    return row


def why_no_ratio_in_loss(trainer: Any, inputs: Mapping[str, Any]) -> str:
    """Explains why a loss does not show both sides of a ratio."""
    kind = type(trainer).__name__
    if all(inputs.get(name) is None for name in ROLLOUT_LOGPS):
        return f"{kind} computes no vLLM importance ratio; there is nothing to record"
    text = f"raw ratio unavailable: the loss of {kind} has an unknown layout; expected log-probabilities from"
    text += f" {SCORING} or as log_probs of the model's output, in the shape of the rollout's."
    return f"{text} Please report it with the trainer's version"


def why_no_ratio(trainer: Any, generated: Mapping[str, Any]) -> str:
    """Explains why a generated batch has no ratio."""
    args, kind = trainer.args, type(trainer).__name__
    if not hasattr(args, "vllm_importance_sampling_correction"):
        return f"{kind} computes no vLLM importance ratio; there is nothing to record"
    if not getattr(args, "use_vllm", False):
        return f"{kind} runs with use_vllm=False: one engine, so no importance ratio; there is nothing to record"
    if generated.get("importance_sampling_ratio") is not None:
        text = "raw ratio unavailable: this version of the trainer returns the corrected ratio without the rollout's"
        return f"{text} log-probabilities, sampling_per_token_logps. Upgrade TRL; 0.27.1 is the first that does"
    missing = " and ".join(name for name in (OLD_LOGPS, ROLLOUT_LOGPS[0]) if generated.get(name) is None)
    return f"raw ratio unavailable: the generated batch has no {missing}. Is vllm_importance_sampling_correction on?"


def why_not_applied(trainer: Any, batch: TrlBatch) -> str | None:
    """Explains why a ratio does not reach the loss; None if it does, or if that is unknown."""
    if not getattr(trainer.args, "vllm_importance_sampling_correction", False):
        if batch.policy == "current":
            text = "no correction applied: the ratio is the current policy's to the rollout's"
            return f"{text}, with the rollout's staleness in it, and is observed only"
        return "the trainer applies no vLLM correction: raw ratios are observed, not applied"
    if loss_reads_ratio(type(trainer)) is False:
        kind = type(trainer).__name__
        return f"the loss of {kind} reads no importance ratio: the correction is computed, not applied"
    return None
