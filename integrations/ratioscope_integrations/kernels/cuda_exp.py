"""Whether the exponential that a Triton kernel takes has the bits of torch's own, which decide about bounds."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false
# Types are Triton's in here, whose own annotations say less than is there.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

_CHUNK, _BLOCK = 1 << 20, 1024
_SMALL, _LARGE = (exponent << 23 for exponent in (127 - 26, 127 + 7))
"""Bits of 2**-26, below which an exponential is 1, and of 2**7, above which it is 0 or infinite."""
_BEYOND = (0.0, 1e-30, 1e-9, 128.5, 700.0, 1e9, 3.0e38)


@triton.jit
def exponentials(values, results, BLOCK: tl.constexpr):
    """One block of float32, a whole one."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(results + at, libdevice.exp(tl.load(values + at)))


def is_torchs(device: torch.device) -> bool:
    """Compares the two on every float32 for which an exponential is neither 0, 1 nor infinite; about 0.1 s."""
    beyond = torch.tensor(_BEYOND, device=device).repeat(_BLOCK)
    differing = _differing(torch.cat([beyond, -beyond]))
    for start in range(_SMALL, _LARGE, _CHUNK):
        values = torch.arange(start, start + _CHUNK, dtype=torch.int32, device=device).view(torch.float32)
        differing += _differing(values) + _differing(-values)
    return not differing.item()


def _differing(values: torch.Tensor) -> torch.Tensor:
    results = torch.empty_like(values)
    exponentials[(len(values) // _BLOCK,)](values, results, BLOCK=_BLOCK)
    return (results.view(torch.int32) != values.exp().view(torch.int32)).sum()
