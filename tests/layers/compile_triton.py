"""Compiles for GPUs what the CUDA kernel would launch, to machine code and without a GPU; one line for each."""

from __future__ import annotations

from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

import ratioscope as rs
from ratioscope.observation import Observation
from ratioscope_integrations.kernels import cuda_exp
from ratioscope_integrations.kernels.cuda import CudaKernel

CAPABILITIES = (80, 90)
TYPES = {torch.float32: "fp32", torch.float64: "fp64", torch.int64: "i64", torch.int32: "i32", torch.uint8: "u8"}


def kind(value: Any) -> str:
    """The type of an argument as Triton writes it."""
    if isinstance(value, torch.Tensor):
        return f"*{TYPES[value.dtype]}"
    return "fp32" if isinstance(value, float) else "i32"


def is_general(parameter: Any) -> bool:
    """Whether a kernel compiled for one value of it takes any, so that nothing is compiled while a training runs."""
    return parameter.is_constexpr or parameter.do_not_specialize or parameter.do_not_specialize_on_alignment


def compiled(kernel: Any, *arguments: Any, grid: object, warmup: bool, **named: Any) -> None:
    """Stands for a launch."""
    if kernel is not cuda_exp.exponentials:  # which is launched in one way only
        specialized = [each.name for each in kernel.params if not is_general(each)]
        assert not specialized, f"{kernel.__name__} would be compiled anew for other values of {specialized}"
    constants = {name: value for name, value in named.items() if name in kernel.arg_names}
    options = {name: value for name, value in named.items() if name not in constants}
    signature = {name: kind(value) for name, value in zip(kernel.arg_names, arguments, strict=False)}
    signature |= dict.fromkeys(constants, "constexpr")
    for capability in CAPABILITIES:
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
        made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        spills = made.asm["ptx"].count(".local")
        print(kernel.__name__, *constants.values(), capability, len(made.asm["cubin"]), spills)


def main() -> None:
    """Everything that either kind of kernel launches."""
    JITFunction.run = compiled
    rows = torch.zeros(3, 140)
    observation = Observation.of(rows, rows, rows == 0, advantages=rows[:, 0], token_ids=rows.long())
    for own_exp in (True, False):
        CudaKernel(own_exp=own_exp)(observation, rs.Correction("token", "truncate", upper=2.0), rows)
    cuda_exp._differing(torch.zeros(1024))


if __name__ == "__main__":
    main()
