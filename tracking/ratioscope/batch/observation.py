"""Observation: one batch of log-probabilities, checked, masked and cast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from ratioscope.batch.checks import check_batch
from ratioscope.batch.packing import Packing, padded
from ratioscope.numerics import FLOAT32_MAX, row_sum

POSITIVE_LOGP_SLACK = 1e-4
"""Largest rollout log-probability that counts as one: rounding alone can reach slightly above 0."""

Logps = torch.Tensor | Sequence[Sequence[float | None]] | Sequence[torch.Tensor]
"""Log-probabilities: a ``(B, T)`` or nested tensor, ``(N,)`` with a packing, or one list or 1-D tensor a row, in which
None or a missing tail is a missing token."""

Mask = torch.Tensor | Sequence[Sequence[int]] | Sequence[torch.Tensor]
"""Bool or 0/1 mask in any layout of :data:`Logps`; the missing tail of a short row is masked out."""


@dataclass(frozen=True)
class Observation:
    """Checked batch. Every tensor is detached; derived tensors are float32 or bool, computed when first asked for.

    A token is valid if it is masked in, both its log-probabilities are finite, and the rollout's is not above 0.

    Attributes:
        given: train, rollout and mask, ``(B, T)``, as given.
        absent: bool, broadcast to ``(B, T)``: positions where a list has None or has ended; None for tensors.
        advantages: float32 ``(B,)`` or None.
        token_ids: int64 ``(B, T)`` or None.
    """

    given: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    absent: torch.Tensor | None
    advantages: torch.Tensor | None
    token_ids: torch.Tensor | None

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        train_logps: Logps,
        rollout_logps: Logps,
        mask: Mask,
        *,
        advantages: torch.Tensor | Sequence[float] | None = None,
        token_ids: torch.Tensor | Sequence[torch.Tensor] | None = None,
        packing: Packing | None = None,
    ) -> Observation:
        """Checks and casts a batch, without a host sync and without touching the caller's tensors.

        Args:
            train_logps: ``(B, T)`` log-probabilities of the sampled tokens under the trainer.
            rollout_logps: ``(B, T)`` log-probabilities under the engine that sampled them.
            mask: ``(B, T)`` bool or 0/1: completion tokens that the policy sampled (tool results excluded).
            advantages: ``(B,)`` advantage of each row.
            token_ids: ``(B, T)`` ids of the sampled tokens, with which the worst of them are reported.
            packing: where the rows lie if the tensors are ``(N,)``. Other layouts are described at :data:`Logps`.

        Raises:
            ValueError: if a shape is not exactly as stated; nothing is broadcast.
            TypeError: if the log-probabilities are not floating-point, or an argument is no tensor or list.
        """
        if mask is None:
            msg = "got mask=None; expected a bool or 0/1 tensor of the log-probabilities' shape"
            raise TypeError(msg)
        in_mask: torch.Tensor
        ids: torch.Tensor | None
        train_rows, rollout_rows, in_mask, ids = padded(
            packing, train_logps=train_logps, rollout_logps=rollout_logps, mask=mask, token_ids=token_ids
        )
        train, absent_train = _as_tensor("train_logps", train_rows, in_mask)
        rollout, absent_rollout = _as_tensor("rollout_logps", rollout_rows, in_mask)
        if advantages is not None and not isinstance(advantages, torch.Tensor):
            advantages = torch.as_tensor(advantages, dtype=torch.float32, device=in_mask.device)
        check_batch(train, rollout, in_mask, advantages=advantages, token_ids=ids)

        parts = [part for part in (absent_train, absent_rollout) if part is not None]
        return cls(
            given=(_detached(train), _detached(rollout), _detached(in_mask)),
            absent=torch.stack(parts).any(dim=0) if parts else None,
            advantages=None if advantages is None else _detached(advantages).float(),
            token_ids=None if ids is None else _detached(ids).to(train.device, torch.int64),
        )

    @cached_property
    def _cast(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.given[0].float(), self.given[1].float()

    @cached_property
    def _difference(self) -> torch.Tensor:
        """Float32 ``(B, T)``, train - rollout of all tokens, valid or not."""
        train, rollout = self._cast
        return train - rollout

    @cached_property
    def masked_in(self) -> torch.Tensor:
        """Bool ``(B, T)``, the mask as given."""
        mask = self.given[2]
        return mask if mask.dtype == torch.bool else mask != 0

    @cached_property
    def narrowing(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Five bool ``(B, T)``, each part of the one before: masked in, not missing, not NaN, finite, valid."""
        (train, rollout), masked_in = self._cast, self.masked_in
        present = masked_in if self.absent is None else masked_in & ~self.absent
        larger = torch.maximum(train, rollout)  # NaN if either is, and then not equal to itself
        known = present & (larger == larger)
        finite = known & (self._difference.abs() <= FLOAT32_MAX)
        return masked_in, present, known, finite, finite & (rollout <= POSITIVE_LOGP_SLACK)

    @property
    def valid(self) -> torch.Tensor:
        """Bool ``(B, T)``, tokens that are masked in, with two finite log-probabilities, the rollout's not above 0."""
        return self.narrowing[-1]

    @cached_property
    def invalid(self) -> torch.Tensor:
        """Bool ``(B, T)``, the others."""
        return ~self.valid

    @cached_property
    def columns(self) -> torch.Tensor:
        """Float32 ``(3, B, T)``: :attr:`train`, :attr:`rollout` and :attr:`log_ratio`, for operations on all three."""
        return torch.stack([*self._cast, self._difference]).masked_fill_(self.invalid, 0.0)

    @cached_property
    def bits(self) -> tuple[torch.Tensor, ...]:
        """Three int32 ``(B, T)``, the bits of :attr:`columns`."""
        return self.columns.view(torch.int32).unbind()

    @cached_property
    def _columns(self) -> tuple[torch.Tensor, ...]:
        return self.columns.unbind()

    @property
    def train(self) -> torch.Tensor:
        """``(B, T)`` trainer log-probabilities, 0 where not valid."""
        return self._columns[0]

    @property
    def rollout(self) -> torch.Tensor:
        """``(B, T)`` rollout log-probabilities, 0 where not valid."""
        return self._columns[1]

    @cached_property
    def log_ratio(self) -> torch.Tensor:
        """``(B, T)`` train - rollout, in nats, 0 where not valid."""
        return self._columns[2]

    @cached_property
    def step_log_ratio(self) -> torch.Tensor:
        """``(B, T)`` log-ratio of the correction step, with TRL's operations: 0 only where masked out or NaN."""
        mask = self.given[2]
        # A product with integers or bool is float32 already.
        return torch.nan_to_num(self._difference * (mask.float() if mask.is_floating_point() else mask), nan=0.0)

    @cached_property
    def n_valid(self) -> torch.Tensor:
        """Int64 ``(B,)``, valid tokens of each sequence."""
        return self.valid.sum(dim=-1)

    @cached_property
    def row_log_ratio(self) -> torch.Tensor:
        """Float64 ``(B,)``, sums of log-ratios, exact wherever :func:`ratioscope.numerics.row_sum` is."""
        return row_sum(self.log_ratio.double())

    @cached_property
    def sequence_log_ratio(self) -> torch.Tensor:
        """Float32 ``(B,)``, row_log_ratio rounded once, so that its bits do not depend on padding or splits."""
        return self.row_log_ratio.clamp(-FLOAT32_MAX, FLOAT32_MAX).float()

    @property
    def has_step_log_ratio(self) -> bool:
        """True if a kernel found that :attr:`log_ratio` is :attr:`step_log_ratio` too; computes neither."""
        computed = vars(self)
        return "log_ratio" in computed and computed["log_ratio"] is computed.get("step_log_ratio")

    def take_log_ratio(self, log_ratio: torch.Tensor, *, of_step: bool) -> None:
        """Stores :attr:`log_ratio` as a kernel computed it.

        Args:
            log_ratio: float32 ``(B, T)``.
            of_step: whether it is :attr:`step_log_ratio` too.
        """
        vars(self)["log_ratio"] = log_ratio
        if of_step:
            vars(self)["step_log_ratio"] = log_ratio

    def take_sequences(self, n_valid: torch.Tensor, log_ratio: torch.Tensor) -> None:
        """Stores :attr:`n_valid` and :attr:`sequence_log_ratio` as a kernel computed them."""
        vars(self)["n_valid"], vars(self)["sequence_log_ratio"] = n_valid, log_ratio


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


def _as_tensor(name: str, logps: Logps, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns a tensor unchanged; rows as a float32 tensor padded to the mask's width, and a mask of missing values."""
    if isinstance(logps, torch.Tensor):
        return logps, None
    try:
        rows = [_as_row(row, mask.device) for row in logps]
    except TypeError as error:
        msg = f"got {name} of type {type(logps).__name__}; expected a floating-point tensor of shape (B, T), "
        msg += "or one list a row of numbers and None"
        raise TypeError(msg) from error
    lengths = [len(values) for values, _ in rows]
    width = mask.shape[1] if mask.dim() == 2 else max(lengths, default=0)
    too_long = next((length for length in lengths if length > width), None)
    if too_long is not None:
        msg = f"got a row of {too_long} log-probabilities; expected at most {width}, the mask's width"
        raise ValueError(msg)
    # Not torch's default dtype, which a program may set to bfloat16.
    values = torch.full((len(rows), width), torch.nan, dtype=torch.float32, device=mask.device)
    missing = torch.ones((len(rows), width), dtype=torch.bool, device=mask.device)
    for row, (given, absent) in enumerate(rows):
        values[row, : len(given)], missing[row, : len(given)] = given, absent
    return values, missing


def _as_row(row: object, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the float32 values of a row, NaN where missing, and a mask of missing values.

    Raises:
        TypeError: if the row is no flat sequence of numbers and None.
    """
    if isinstance(row, torch.Tensor):
        if row.dim() != 1 or not row.dtype.is_floating_point:
            msg = f"got a row of shape {tuple(row.shape)} and dtype {row.dtype}"
            raise TypeError(msg)
        return row.detach().float().to(device), torch.zeros(len(row), dtype=torch.bool, device=device)
    values = [None if value is None else float(value) for value in row]  # type: ignore[attr-defined]
    filled = [torch.nan if value is None else value for value in values]
    absent = torch.tensor([value is None for value in values], dtype=torch.bool, device=device)
    return torch.tensor(filled, dtype=torch.float32, device=device), absent
