"""Low-precision linear layers on a CPU: operands rounded to the format's grid, products in float32.

In: float32 matrices. Out: the product a real low-precision unit would give (its operands are rounded, its accumulator is
float32). CPUs multiply bfloat16 and FP8 far slower than float32, so emulation is both the reference numerics and the fast path.

Rounding is exact round-to-nearest-even without an 8-bit detour. For v with 2**E <= |v| < 2**(E+1) and m mantissa bits, adding
1.5 * 2**(E + 23 - m) pushes all but m mantissa bits out of the float32 word, and subtracting it again leaves the rounded v. The
power 2**E is v with sign and mantissa masked off; holding it at the smallest normal makes the subnormal grid come out as well.

Shapes: M tokens, K input features, N output features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.precision.formats import SMALLEST_SCALE, Float8Format

_EXPONENT_MASK = 0x7F800000
# 128 Ki floats are 512 KiB: a chunk and its exponents stay in a core's cache over the five passes.
_CHUNK = 128 * 1024


class Rounded(NamedTuple):
    """One operand of an emulated product: float32 values on the format's grid, and the factor they are short of."""

    values: Tensor
    scale: float


RoundFn = Callable[[Tensor], Rounded]


def round_to_grid(x: Tensor, inverse_scale: float, fmt: Float8Format) -> Tensor:
    """Round x * inverse_scale to the values of `fmt`, in float32 (same shape, contiguous).

    Equals `(x * inverse_scale).to(fmt.dtype).float()` bit for bit up to the sign of zero, in under half the time. The product
    must not exceed the format's largest value after rounding (a dynamic scale sees to it): there is no saturation here.
    NaN and infinity come out as NaN.
    """
    x = x.detach().float().contiguous()
    if x.numel() <= _CHUNK:
        return _round_in_place(x * inverse_scale, fmt)
    out = torch.empty_like(x)
    for source, target in zip(x.view(-1).split(_CHUNK), out.view(-1).split(_CHUNK), strict=True):
        torch.mul(source, inverse_scale, out=target)
        _round_in_place(target, fmt)
    return out


def _round_in_place(scaled: Tensor, fmt: Float8Format) -> Tensor:
    magic = 1.5 * 2.0 ** (23 - fmt.mantissa_bits)
    power = scaled.view(torch.int32).bitwise_and(_EXPONENT_MASK).view(torch.float32).clamp_(min=fmt.smallest_normal)
    return scaled.add_(power, alpha=magic).sub_(power, alpha=magic)


def scale_pair(x: Tensor, fmt: Float8Format) -> tuple[float, float]:
    """(scale, 1 / scale) of `formats.dynamic_scale`, the same float32 numbers, as Python floats.

    A rollout step rounds a few kilobytes at a time; there the scalar tensor operations cost more than the rounding, so the
    arithmetic after the reduction is done in numpy float32.
    """
    if x.numel() == 0:
        return 1.0, 1.0
    low, high = torch.aminmax(x.detach())
    largest = np.float32(max(-low.item(), high.item()))
    scale = np.maximum(largest / np.float32(fmt.largest), np.float32(SMALLEST_SCALE))
    return float(scale), float(np.float32(1.0) / scale)


def round_float8(x: Tensor, fmt: Float8Format) -> Rounded:
    """Per-tensor dynamic FP8: grid values of x / scale with scale = max|x| / largest (see `formats.dynamic_scale`)."""
    scale, inverse_scale = scale_pair(x, fmt)
    return Rounded(round_to_grid(x, inverse_scale, fmt), scale)


def round_bfloat16(x: Tensor) -> Rounded:
    """Round to bfloat16 and back to float32; NaN and infinity pass through."""
    return Rounded(x.detach().contiguous().to(torch.bfloat16).float(), 1.0)


def scaled_product(a_MK: Tensor, b_KN: Tensor, scale: float, bias_N: Tensor | None = None) -> Tensor:
    """scale * a @ b (+ bias) in float32; the scale rides on the GEMM's own factor and costs no pass of its own.

    A non-finite scale makes every element NaN, also where a and b are zero.
    """
    if bias_N is None:
        return torch.addmm(a_MK.new_zeros(()), a_MK, b_KN, beta=0, alpha=scale)
    return torch.addmm(bias_N, a_MK, b_KN, beta=1, alpha=scale)


class Backward(NamedTuple):
    """What the backward products multiply with, where it is not what the forward product did (None)."""

    round_gradient: RoundFn
    """The output's gradient for dx, contracted along the output features."""
    round_gradient_wgrad: RoundFn | None = None
    """The same for dw, contracted along the tokens."""
    wgrad_x: Rounded | None = None
    """The input for dw."""
    dgrad_w: Rounded | None = None
    """The weight for dx."""


class _EmulatedLinear(torch.autograd.Function):
    """y = x w^T + b on rounded operands; the backward products use those of `Backward`, and a gradient rounded for each of them."""

    @staticmethod
    def forward(ctx, x_MK, weight_NK, bias_N, rounded_x: Rounded, rounded_w: Rounded, backward: Backward):  # noqa: D102
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        kept_x = rounded_x if backward.wgrad_x is None else backward.wgrad_x
        kept_w = rounded_w if backward.dgrad_w is None else backward.dgrad_w
        ctx.save_for_backward(kept_x.values if needs_weight else None, kept_w.values if needs_x else None)
        ctx.scales = (kept_x.scale, kept_w.scale)
        ctx.round_gradient, ctx.round_gradient_wgrad = backward.round_gradient, backward.round_gradient_wgrad
        return _forward_product(rounded_x, rounded_w, bias_N)

    @staticmethod
    def backward(ctx, grad_MN):  # noqa: D102
        x_MK, weight_NK = ctx.saved_tensors
        x_scale, weight_scale = ctx.scales
        grad_x = grad_weight = grad_bias = None
        one_rounding = ctx.round_gradient_wgrad is None
        if weight_NK is not None or (one_rounding and x_MK is not None):
            rounded = ctx.round_gradient(grad_MN)
        if weight_NK is not None:
            grad_x = scaled_product(rounded.values, weight_NK, rounded.scale * weight_scale)
        if x_MK is not None:
            if not one_rounding:
                rounded = ctx.round_gradient_wgrad(grad_MN)
            grad_weight = scaled_product(rounded.values.t(), x_MK, rounded.scale * x_scale)
        if ctx.needs_input_grad[2]:
            grad_bias = grad_MN.sum(dim=0)
        return grad_x, grad_weight, grad_bias, None, None, None


def _forward_product(rounded_x: Rounded, rounded_w: Rounded, bias_N: Tensor | None) -> Tensor:
    return scaled_product(rounded_x.values, rounded_w.values.t(), rounded_x.scale * rounded_w.scale, bias_N)


def emulated_linear(
    x_MK: Tensor,
    weight_NK: Tensor,
    bias_N: Tensor | None,
    rounded_x: Rounded,
    rounded_w: Rounded,
    backward: RoundFn | Backward,
) -> Tensor:
    """Linear layer on rounded operands, float32 (M, N).

    `x_MK` and `weight_NK` carry the autograd graph only; the numbers come from `rounded_x` and `rounded_w`, which are kept for
    the backward pass, so nothing is rounded twice, unless `backward` has operands of its own. A bare function rounds the gradient of
    both backward products.
    """
    if not torch.is_grad_enabled():
        return _forward_product(rounded_x, rounded_w, bias_N)
    backward = backward if isinstance(backward, Backward) else Backward(round_gradient=backward)
    return _EmulatedLinear.apply(x_MK, weight_NK, bias_N, rounded_x, rounded_w, backward)
