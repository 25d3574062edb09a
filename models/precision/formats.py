"""The small number formats, their casts, and their per-tensor and power-of-two scales.

In: float tensors. Out: float8 tensors with a float32 scale each, such that `values * scale` is the tensor again.
E4M3 (weights, activations): 1 sign, 4 exponent, 3 mantissa bits, largest 448, no infinity.
E5M2 (gradients): 1 sign, 5 exponent, 2 mantissa bits, largest 57344, has infinity.
Micikevicius et al. 2022, "FP8 formats for deep learning", arXiv 2209.05433.
E2M1 (four-bit values): 1 sign, 2 exponent, 1 mantissa bit, largest 6, no infinity.
E8M0 (scales of blocks): an exponent alone, 2**-127 to 2**127, code 255 is NaN.
Rouhani et al. 2023, "Microscaling data formats for deep learning", arXiv 2310.10537.

`tensor.to(float8)` alone is not safe: whether a finite overflow becomes the largest number, infinity or NaN, and whether a
true infinity is hidden as the largest number, depends on format, device and torch version. `saturating_cast` fixes one rule:
a finite overflow saturates, NaN stays NaN, infinity stays infinity where the format has one and becomes NaN where it has not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Float8Format:
    """One floating-point format of at most 8 bits; all numbers are exact powers of two or small multiples of one."""

    name: str
    dtype: torch.dtype | None
    """What torch stores it as; None for E2M1, which torch can hold packed but not cast to."""
    largest: float
    """Largest finite value."""
    smallest_normal: float
    mantissa_bits: int
    infinity: float
    """What a true infinity is stored as: infinity, or NaN in a format without one."""


E4M3 = Float8Format(
    name="E4M3", dtype=torch.float8_e4m3fn, largest=448.0, smallest_normal=2.0**-6, mantissa_bits=3, infinity=math.nan
)
E5M2 = Float8Format(
    name="E5M2", dtype=torch.float8_e5m2, largest=57344.0, smallest_normal=2.0**-14, mantissa_bits=2, infinity=math.inf
)
E2M1 = Float8Format(name="E2M1", dtype=None, largest=6.0, smallest_normal=1.0, mantissa_bits=1, infinity=math.nan)

# Smallest scale handed out: the smallest normal float32. Its reciprocal 2**126 is still finite, so an all-zero tensor
# divides to zeros and not to NaN.
SMALLEST_SCALE = 2.0**-126
# The same for a block's power-of-two scale: 2**-120 times E4M3's smallest normal 2**-6 is still a normal float32.
SMALLEST_BLOCK_SCALE = 2.0**-120


class Quantized(NamedTuple):
    """A float8 tensor and its 0-dim float32 scale: `values.float() * scale` restores the tensor."""

    values: Tensor
    scale: Tensor


class CastStats(NamedTuple):
    """What a cast to FP8 does to out-of-range input, in numbers of elements."""

    saturated: int
    """Finite elements beyond the largest value."""
    nonfinite: int
    """NaN and infinities; they reach the result as NaN or infinity."""


def saturating_cast(x: Tensor, fmt: Float8Format) -> Tensor:
    """Cast floats of any shape to `fmt`, round to nearest even; finite overflow saturates, NaN and infinity stay visible.

    Infinity becomes NaN in E4M3, which has no infinity. The rule is the same on every device and torch version.
    """
    finite = x.clamp(-fmt.largest, fmt.largest)
    return torch.where(x.isinf(), x * fmt.infinity, finite).to(fmt.dtype)


def cast_stats(x: Tensor, fmt: Float8Format) -> CastStats:
    """Count what `saturating_cast(x, fmt)` saturates and what it has to pass on as non-finite.

    `x` is the tensor as cast, i.e. already divided by its scale: a stale scale shows up here as `saturated > 0`.
    """
    nonfinite = int((~x.isfinite()).sum())
    beyond = int((x.abs() > fmt.largest).sum()) - int(x.isinf().sum())
    return CastStats(saturated=beyond, nonfinite=nonfinite)


def dynamic_scale(x: Tensor, fmt: Float8Format) -> Tensor:
    """Per-tensor scale max|x| / largest as a 0-dim float32 tensor on x's device (no host synchronisation).

    At least 2**-126, so a tensor of zeros has a finite scale with a finite reciprocal. NaN anywhere in `x` gives NaN and
    infinity gives infinity: the products made with such a scale are non-finite, which is how the optimizer step sees it.
    An empty tensor has scale 1.
    """
    if x.numel() == 0:
        return torch.ones((), dtype=torch.float32, device=x.device)
    low, high = torch.aminmax(x.detach())
    largest = torch.maximum(-low, high).float()
    return (largest / fmt.largest).clamp(min=SMALLEST_SCALE)


def quantize(x: Tensor, fmt: Float8Format, scale: Tensor | None = None) -> Quantized:
    """Quantize a tensor of any shape with one scale: values = cast(x / scale).

    Without `scale` the current maximum decides (nothing saturates); a given scale (0-dim float32) may be stale, and then
    values beyond its range saturate. Multiplies by the reciprocal, as GPU kernels do, so codes agree between devices.
    """
    scale = dynamic_scale(x, fmt) if scale is None else scale
    return Quantized(saturating_cast(x.float() * scale.reciprocal(), fmt), scale)


def dequantize(quantized: Quantized, dtype: torch.dtype = torch.float32) -> Tensor:
    """values * scale, computed in float32 (float64 if that is asked for) and returned in `dtype`."""
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    return (quantized.values.to(compute) * quantized.scale.to(compute)).to(dtype)


def quantize_e4m3(x: Tensor, scale: Tensor | None = None) -> Quantized:
    """`quantize` to E4M3: weights and activations."""
    return quantize(x, E4M3, scale)


def quantize_e5m2(x: Tensor, scale: Tensor | None = None) -> Quantized:
    """`quantize` to E5M2: gradients."""
    return quantize(x, E5M2, scale)


def power_of_two_above(x: Tensor) -> Tensor:
    """The smallest power of two that is not below x >= 0, elementwise, float32, at least 2**-120; infinity and NaN stay.

    Bit arithmetic on the float32 word, so exact: adding all ones to the mantissa carries into the exponent unless it was zero.
    """
    x = x.float().contiguous()
    power = (x.view(torch.int32) + 0x007FFFFF).bitwise_and_(0x7F800000).view(torch.float32)
    return torch.where(x.isfinite(), power.clamp_(min=SMALLEST_BLOCK_SCALE), x)


def encode_e8m0(scale: Tensor) -> Tensor:
    """Codes (uint8) of scales that are powers of two; NaN and infinity become 255, E8M0's NaN.

    ValueError for a finite scale that is not a positive power of two: this is a way to store scales, not to round them.
    """
    scale = scale.float().contiguous()
    bits = scale.view(torch.int32)
    finite = scale.isfinite()
    subnormal = scale == 2.0**-127
    if not bool((~finite | subnormal | ((bits & 0x007FFFFF == 0) & (scale > 0))).all()):
        raise ValueError("encode_e8m0: got a scale that is not a power of two from 2**-127 to 2**127; round it with power_of_two_above first")
    codes = torch.where(subnormal, torch.zeros_like(bits), bits >> 23)
    return torch.where(finite, codes, torch.full_like(bits, 255)).to(torch.uint8)


def decode_e8m0(codes: Tensor) -> Tensor:
    """float32 scales 2 ** (code - 127) of uint8 codes; 255 is NaN."""
    scales = (codes.to(torch.int32) << 23).view(torch.float32)
    scales = torch.where(codes == 0, torch.full_like(scales, 2.0**-127), scales)
    return torch.where(codes == 255, torch.full_like(scales, math.nan), scales)
