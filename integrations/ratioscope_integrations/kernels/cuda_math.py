"""Arithmetic of the CUDA kernel that is the same to the last bit or nearly so on a GPU and in Triton's interpreter.

No function of CUDA's own library is called for float64: exponentials are polynomials, as in the CPU's kernel.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false
# Types are Triton's in here, whose own annotations say less than is there.

from __future__ import annotations

import math

import triton
import triton.language as tl

from ratioscope import exact, histogram, observation, top

_LOG2E = tl.constexpr(math.log2(math.e))
_LN2_HIGH = tl.constexpr(6.93147180369123816490e-01)  # its low bits are zero: products with small integers are exact
_LN2_LOW = tl.constexpr(1.90821492927058770002e-10)
_ROUND = tl.constexpr(1.5 * 2.0**52)  # adding it leaves the nearest integer in a float's low bits
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13 = (
    tl.constexpr(1.0 / math.factorial(n)) for n in range(2, 14)
)

_ZERO = tl.constexpr(histogram.ZERO)
_SHIFT = tl.constexpr(histogram.MANTISSA_BITS - histogram.SUB_BUCKET_BITS)
_OFFSET = tl.constexpr(((histogram.EXPONENT_BIAS + histogram.MIN_EXPONENT) << histogram.SUB_BUCKET_BITS) - 1)

LARGEST = tl.constexpr(exact.FLOAT32_MAX)
SLACK = tl.constexpr(observation.POSITIVE_LOGP_SLACK)
_SPREAD = tl.constexpr(top.MULTIPLIERS[5])
NO_KEY = tl.constexpr(-(2**62))
"""Key of what is no valid token; any token's is above it."""


@triton.jit
def tokens(train, rollout, mask, row_of_train, row_of_rollout, row_of_mask, column, width):
    """Of some columns: whether masked in, whether valid, and both sides' log-probabilities as they are."""
    inside = (column >= 0) & (column < width)
    y = tl.load(train + row_of_train + column, mask=inside, other=0.0)
    x = tl.load(rollout + row_of_rollout + column, mask=inside, other=0.0)
    masked_in = tl.load(mask + row_of_mask + column, mask=inside, other=0) != 0
    return masked_in, masked_in & (tl.abs(y - x) <= LARGEST) & (x <= SLACK), y, x


@triton.jit
def _parts(x):
    """K and expm1(r), where x = k ln 2 + r and abs(r) is at most half of ln 2, by Taylor's polynomial."""
    shifted = x * _LOG2E + _ROUND
    k = shifted - _ROUND
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    p = r * _C13 + _C12
    p = r * p + _C11
    p = r * p + _C10
    p = r * p + _C9
    p = r * p + _C8
    p = r * p + _C7
    p = r * p + _C6
    p = r * p + _C5
    p = r * p + _C4
    p = r * p + _C3
    p = r * p + _C2
    return k.to(tl.int64), r + r * r * p


@triton.jit
def _power(k):
    """2**k, for k from -1022 to 1023."""
    return ((k + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def exp(x):
    """Of float64; infinite and 0 where it has to be."""
    k, rest = _parts(tl.minimum(tl.maximum(x, -746.0), 710.0))
    half = k >> 1
    return (rest + 1.0) * _power(half) * _power(k - half)


@triton.jit
def expm1_both(d):
    """expm1 of a float64 and of its negative."""
    k, rest = _parts(tl.minimum(tl.abs(d), 1000.0))
    above = rest + (1.0 - _power(-tl.minimum(k, 1022)))  # expm1(abs(d)) by 2**k, small where d is
    half = k >> 1
    up = above * _power(half) * _power(k - half)
    down = -above / (rest + 1.0)
    rises = d >= 0.0
    return tl.where(rises, up, down), tl.where(rises, down, up)


@triton.jit
def coarse(value):
    """The nearest multiple of 2**-20, as :func:`ratioscope.exact.halves` has it; a float32 from 8 on is one."""
    scaled = value * 1048576.0
    rounded = ((scaled + _ROUND) - _ROUND) * (1.0 / 1048576.0)
    return tl.where(tl.abs(value) < 8.0, rounded, value)


@triton.jit
def bits_of(value):
    """A float32's, as int32."""
    return value.to(tl.int32, bitcast=True)


@triton.jit
def bucket(value):
    """As :func:`ratioscope.histogram.bucket_index` has it."""
    bits = bits_of(value)
    magnitude = ((bits & 0x7FFFFFFF) >> _SHIFT) - _OFFSET
    magnitude = tl.minimum(tl.maximum(magnitude, 0), _ZERO)
    return tl.where(bits < 0, _ZERO - magnitude, _ZERO + magnitude)


@triton.jit
def key_of(value, fingerprint, position, valid):
    """The total order of :mod:`ratioscope.top`: the bits of an absolute float32, then 32 of a hash."""
    hashed = ((fingerprint >> 20) - 2147483648 + position.to(tl.int64) * _SPREAD).to(tl.int32)
    size = (bits_of(value) & 0x7FFFFFFF).to(tl.int64)
    return tl.where(valid, (size << 32) + hashed.to(tl.int64), NO_KEY)


@triton.jit
def store_columns(columns, at, stride, values):
    """Puts a tuple of numbers into columns that lie ``stride`` apart."""
    for i in tl.static_range(len(values)):
        tl.store(columns + i * stride + at, values[i])
