"""Interface of a rule, and of a batch that a rule has corrected.

Two classes have it: :class:`ratioscope.correction.bounds.Correction` keeps ratios within bounds, and
:class:`ratioscope.correction.staged.StagedCorrection` sends weights through stages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from ratioscope.batch.observation import Observation
    from ratioscope.correction.bounds import Correction
    from ratioscope.correction.stages import Stage

Level = Literal["token", "sequence"]
"""What one ratio belongs to: a token, or a whole sequence (exp of the *sum* of its log-ratios)."""


class Rule(Protocol):
    """Rule that turns importance ratios into weights; a frozen value, equal to a rule with the same settings."""

    @property
    def level(self) -> Level:
        """Level of the weights that statistics count."""
        ...

    @property
    def mode(self) -> str:
        """Short name, such as ``"token_truncate"`` or a preset's name."""
        ...

    @property
    def sources(self) -> Mapping[str, str]:
        """For each field, the name of the setting it was read from; not compared."""
        ...

    @property
    def bounds(self) -> Correction | None:
        """Bounds that are the whole rule, so that histograms tell what other bounds would do; None of other rules."""
        ...

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Stages in order; none for bounds."""
        ...

    @property
    def batch_normalize(self) -> bool:
        """Whether the loss divides weights by their mean over the batch."""
        ...

    @property
    def drops(self) -> bool:
        """Whether the rule takes tokens out of the mask, so that the loss divides by fewer."""
        ...

    def correct(self, observation: Observation) -> CorrectedBatch:
        """Applies the rule to a batch, without a host sync.

        Raises:
            ValueError: if the rule decides by the advantage, and the batch has none.
        """
        ...

    def words(self) -> str:
        """Describes the rule in one line."""
        ...

    def with_sources(self, name: str, sources: Mapping[str, str]) -> Self:
        """Returns the rule under a preset's name, with the settings that its fields were read from."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Returns all fields as plain JSON; ``Correction.from_json`` is the inverse."""
        ...

    def to_config(self) -> dict[str, Any]:
        """Returns the settings as a run's config shows them."""
        ...


class CorrectedBatch(Protocol):
    """What a rule did to one batch.

    Tensors have the shape of the rule's level: ``(B, T)`` for tokens, ``(B, 1)`` for sequences. Their values are
    meaningless where :attr:`valid` is False.
    """

    @property
    def observation(self) -> Observation:
        """The batch as given."""
        ...

    @property
    def valid(self) -> torch.Tensor:
        """Bool, tokens that are valid, or sequences with at least one valid token."""
        ...

    @property
    def raw(self) -> torch.Tensor:
        """Float32, weights before the rule."""
        ...

    @property
    def weights(self) -> torch.Tensor:
        """Float32, weights after the rule, before any normalisation; 0 where dropped."""
        ...

    @property
    def log_weights(self) -> torch.Tensor:
        """Float32, natural logarithms of the weights after the rule."""
        ...

    @property
    def kept_mask(self) -> torch.Tensor:
        """Bool, valid entries that the loss still divides by."""
        ...

    @property
    def positive_mask(self) -> torch.Tensor:
        """Bool, kept entries that the rule did not set to 0: those with a logarithm."""
        ...

    @property
    def low(self) -> torch.Tensor:
        """Bool, valid entries that the rule modified for being too small."""
        ...

    @property
    def high(self) -> torch.Tensor:
        """Bool, valid entries that the rule modified for being too large; disjoint from :attr:`low`."""
        ...

    @property
    def loss_weights(self) -> torch.Tensor:
        """Float32, factors of the loss: ``(B, T)``, or ``(B, 1)`` of sequences; 1 where nothing usable is known."""
        ...

    @property
    def loss_mask(self) -> torch.Tensor:
        """Bool ``(B, T)``, the mask without dropped tokens."""
        ...

    @property
    def normalizer(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Float64 sum and int64 number of the weights whose mean the loss divides by; None without normalisation."""
        ...

    @property
    def stage_counts(self) -> torch.Tensor | None:
        """Int64, one for each of ``stages.STAGE_COUNTS``; None for a rule without stages."""
        ...

    def disagreements(self, applied: torch.Tensor) -> torch.Tensor:
        """Counts valid entries whose applied weight is not the rule's: int64, 0-d.

        Args:
            applied: weights that the loss really uses.
        """
        ...
