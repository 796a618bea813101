"""Net: one policy, computed by runtimes that round in different places."""

from __future__ import annotations

from dataclasses import dataclass

import torch

Tensor = torch.Tensor
EXPERT_STRENGTH = 0.3
"""Scale of an expert's output over that of the hidden state it is added to."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_LARGEST_FP8 = 448.0


@dataclass(frozen=True)
class Runtime:
    """Describes how one side computes the net.

    Attributes:
        dtype: ``float32``, ``bfloat16`` or ``float16``: weights, hidden states and partial sums.
        chunks: number of parts of the hidden state that are summed one after the other; sides differ in it.
        quantization: ``none``, ``fp8`` (e4m3) or ``int8``, of the output matrix, with one scale per token.
        fp32_head: True if partial sums and logits stay in float32.
        misrouted: share of tokens whose experts are chosen at random.
    """

    dtype: str = "bfloat16"
    chunks: int = 1
    quantization: str = "none"
    fp32_head: bool = False
    misrouted: float = 0.0


@dataclass(frozen=True)
class Weights:
    """Weights of the net: ``output`` is ``(V, D)``, ``router`` ``(D, E)``, ``experts`` ``(E, D, D)``; E may be 0."""

    output: Tensor
    router: Tensor
    experts: Tensor


def initial_weights(vocabulary: int, hidden: int, experts: int, generator: torch.Generator) -> Weights:
    """Draws weights under which a hidden state of norm 1 has logits of standard deviation 1."""
    output = torch.randn(vocabulary, hidden, generator=generator)
    router = torch.randn(hidden, experts, generator=generator)
    layers = torch.randn(experts, hidden, hidden, generator=generator) / hidden**0.5
    return Weights(output, router, layers)


def logits(weights: Weights, hidden: Tensor, runtime: Runtime, generator: torch.Generator) -> Tensor:
    """Logits ``(N, V)`` in float32 of hidden states ``(N, D)``, with the runtime's rounding."""
    dtype = _DTYPES[runtime.dtype]
    state = _through_experts(weights, hidden.to(dtype).float(), runtime, generator).to(dtype).float()
    matrix = quantized(weights.output, runtime.quantization).to(dtype).float()
    total = torch.zeros(len(hidden), len(matrix))
    for left, right in zip(state.chunk(runtime.chunks, 1), matrix.chunk(runtime.chunks, 1), strict=True):
        total = total + left @ right.T
        if not runtime.fp32_head:
            total = total.to(dtype).float()
    return total


def quantized(matrix: Tensor, kind: str) -> Tensor:
    """Matrix after a round trip through 8 bits, with one scale per row; unchanged for ``none``."""
    if kind == "none":
        return matrix
    largest = matrix.abs().amax(1, keepdim=True).clamp(min=1e-12)
    if kind == "fp8":
        scale = largest / _LARGEST_FP8
        return (matrix / scale).to(torch.float8_e4m3fn).float() * scale
    scale = largest / 127.0
    return (matrix / scale).round().to(torch.int8).float() * scale


def _through_experts(weights: Weights, hidden: Tensor, runtime: Runtime, generator: torch.Generator) -> Tensor:
    """Hidden states after the two experts with the highest router logits; unchanged without experts."""
    if not weights.experts.shape[0]:
        return hidden
    norm = hidden.norm(dim=1, keepdim=True)
    dtype = _DTYPES[runtime.dtype]
    scores = torch.zeros(len(hidden), weights.router.shape[1])
    for left, right in zip(hidden.chunk(runtime.chunks, 1), weights.router.chunk(runtime.chunks, 0), strict=True):
        scores = (scores + (left / norm) @ right).to(dtype).float()
    if runtime.misrouted:
        lost = torch.rand(len(scores), 1, generator=generator) < runtime.misrouted
        scores = torch.where(lost, torch.randn(scores.shape, generator=generator), scores)
    top = scores.topk(2, 1)
    added = torch.einsum("nd,edf->nef", hidden, weights.experts)
    chosen = added.gather(1, top.indices[..., None].expand(-1, -1, hidden.shape[1]))
    return hidden + EXPERT_STRENGTH * (top.values.softmax(1)[..., None] * chosen).sum(1)
