"""Statistics that tokens and completions have in common, computed from their log-ratios."""

from __future__ import annotations

from typing import NamedTuple

import torch


class LevelColumns(NamedTuple):
    """Terms of one level's sums, views of the rows of one float64 tensor, and that tensor.

    Sums over many columns are taken at once, over their common tensor: on a GPU each sum is a launch.

    Attributes:
        rows: ``(k, ...)``, all that follow, in order.
        inside: 1 where valid, else 0.
        abs_d: absolute value of d.
        d: log-ratio d, 0 where not valid.
        excess: exp(d) - 1.
        weight: exp(d - m), m being the largest valid d; 0 where not valid.
        k3: exp(d) - 1 - d.
        weight_d: exp(d - m) (d - m).
        others: further columns, to be filled by the caller.
    """

    rows: torch.Tensor
    inside: torch.Tensor
    abs_d: torch.Tensor
    d: torch.Tensor
    excess: torch.Tensor
    weight: torch.Tensor
    k3: torch.Tensor
    weight_d: torch.Tensor
    others: list[torch.Tensor]

    @classmethod
    def from_log_ratios(cls, log_ratio: torch.Tensor, valid: torch.Tensor, *, n_others: int = 0) -> LevelColumns:
        """Allocates the columns and fills the first three."""
        rows = torch.empty(7 + n_others, *valid.shape, dtype=torch.float64, device=valid.device)
        inside, abs_d, d, excess, weight, k3, weight_d, *others = rows.unbind()
        inside.copy_(valid)
        torch.abs(d.copy_(log_ratio), out=abs_d)
        return cls(rows, inside, abs_d, d, excess, weight, k3, weight_d, others)

    def fill(self, maximum: torch.Tensor) -> None:
        """Fills the exponentials and the products with them.

        Args:
            maximum: float64, 0-d, the largest valid d. Exponentials relative to it cannot overflow.
        """
        torch.expm1(self.d, out=self.excess)
        # As the difference of two sums this would lose all digits where d is small.
        torch.sub(self.excess, self.d, out=self.k3)
        # Above 0 only where not valid: the exponential would be infinite there, and infinity times 0 is NaN.
        torch.sub(self.d, maximum, out=self.weight_d).clamp_(max=0.0)
        torch.exp(self.weight_d, out=self.weight).mul_(self.inside)
        self.weight_d.mul_(self.weight)

    def sums(self) -> list[torch.Tensor]:
        """Sums of all columns, then of the squares of d, excess and weight, in the order of :func:`sum_names`."""
        # Not the square of a norm: its root would be rounded, and a mean of equal weights would not be exact.
        dims = tuple(range(1, self.rows.dim()))
        return [self.rows.sum(dim=dims), self.rows[2:5].square().sum(dim=dims)]


def sum_names(level: str, *others: str) -> tuple[str, ...]:
    """Names of :meth:`LevelColumns.sums` at a level, as in ``slots``, with those of the further columns."""
    columns = (f"{level}/{name}" for name in ("inside", "abs_d", "d", "excess", "w", "k3", "wd"))
    return (*columns, *others, *(f"{level}/{name}" for name in ("d2", "excess2", "w2")))


def extremes(values: torch.Tensor, invalid: torch.Tensor) -> torch.Tensor:
    """Maxima over all but the first dimension where not invalid, float64 ``(k,)``; minus infinity without a value.

    Args:
        values: ``(k, ...)``.
        invalid: bool, broadcast to the shape of one of them.
    """
    return values.masked_fill(invalid, -torch.inf).amax(dim=tuple(range(1, values.dim()))).double()
