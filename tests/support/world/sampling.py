"""Sampling: the engine's processing of logits, and the draw of tokens from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

Tensor = torch.Tensor


@dataclass(frozen=True)
class Sampling:
    """Settings of the engine's sampler, in the order in which vLLM applies them.

    Attributes:
        banned: number of tokens, from the first one on, that are never sampled.
        repetition_penalty: divides positive and multiplies negative logits of tokens that the completion has.
        presence_penalty: is subtracted from the logits of tokens that the completion has.
        temperature: divides the logits.
        min_p: smallest kept probability, relative to the largest.
        top_k: number of kept tokens, 0 for all.
        top_p: kept mass.
    """

    banned: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    temperature: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    @property
    def looks_back(self) -> bool:
        """True if a token depends on the earlier ones of its completion."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0


def processed(logits: Tensor, sampling: Sampling, seen: Tensor | None = None) -> Tensor:
    """Log-probabilities ``(N, V)`` from which tokens are drawn; ``seen`` marks tokens that the completion has."""
    scores = logits
    if seen is not None:
        penalty = sampling.repetition_penalty
        punished = torch.where(scores > 0, scores / penalty, scores * penalty) - sampling.presence_penalty
        scores = torch.where(seen, punished, scores)
    if sampling.banned:
        scores = scores.clone()
        scores[:, : sampling.banned] = -math.inf
    scores = scores / sampling.temperature
    if sampling.min_p:
        least = scores.amax(1, keepdim=True) + math.log(sampling.min_p)
        scores = scores.masked_fill(scores < least, -math.inf)
    if sampling.top_k:
        least = scores.topk(sampling.top_k, 1).values[:, -1:]
        scores = scores.masked_fill(scores < least, -math.inf)
    if sampling.top_p < 1.0:
        scores = scores.masked_fill(_outside_nucleus(scores, sampling.top_p), -math.inf)
    return scores.log_softmax(1)


def draw(logits: Tensor, sampling: Sampling, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens ``(N,)`` and their processed log-probabilities; rows of ``length`` neighbouring logits are completions."""
    if not sampling.looks_back:
        return _drawn(processed(logits, sampling), generator)
    steps = logits.view(-1, length, logits.shape[1]).unbind(1)
    seen = torch.zeros(steps[0].shape, dtype=torch.bool)
    pairs = []
    for step in steps:
        pairs.append(_drawn(processed(step, sampling, seen), generator))
        seen.scatter_(1, pairs[-1][0][:, None], value=True)
    tokens, logps = (torch.stack(parts, 1).flatten() for parts in zip(*pairs, strict=True))
    return tokens, logps


def _drawn(logps: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    # The largest of log-probabilities plus Gumbel noise is a draw from them; tokens at -inf are never it.
    noise = -torch.empty_like(logps).exponential_(generator=generator).log()
    tokens = (logps + noise).argmax(1)
    return tokens, logps.gather(1, tokens[:, None])[:, 0]


def _outside_nucleus(scores: Tensor, top_p: float) -> Tensor:
    ordered, order = scores.softmax(1).sort(1, descending=True)
    outside = ordered.cumsum(1) - ordered >= top_p
    return torch.zeros_like(outside).scatter(1, order, outside)
