"""The two FP8 number formats, their casts and their per-tensor scales.

In: float tensors. Out: float8 tensors with a float32 scale each, such that `values * scale` is the tensor again.
E4M3 (weights, activations): 1 sign, 4 exponent, 3 mantissa bits, largest 448, no infinity.
E5M2 (gradients): 1 sign, 5 exponent, 2 mantissa bits, largest 57344, has infinity.
Micikevicius et al. 2022, "FP8 formats for deep learning", arXiv 2209.05433.

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
    """One 8-bit floating-point format; all numbers are exact powers of two or small multiples of one."""

    name: str
    dtype: torch.dtype
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

# Smallest scale handed out: the smallest normal float32. Its reciprocal 2**126 is still finite, so an all-zero tensor
# divides to zeros and not to NaN.
SMALLEST_SCALE = 2.0**-126


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
