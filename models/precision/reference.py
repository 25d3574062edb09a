"""References of the FP8 recipes: quantisers in plain tensor code, products in float64.

In: float matrices. Out: float8 values with their scales, and the three products of a linear layer made of them. What runs in
training (`emulation.py`, `blocks.py`) is tested against this file.

    forward        y  = x  w^T    contracts K
    input grad     dx = dy w      contracts N
    weight grad    dw = dy^T x    contracts M
A scale can leave a product only if it is constant along the contracted axis or constant over a whole block of it, so a recipe
with blocks quantises each operand once for each axis it is contracted along, from the high-precision source.

    fp8_rowwise    one power-of-two scale for a whole vector along the contracted axis
    fp8_blockwise  1x128 along the contracted axis; weights 128x128, good for both axes (DeepSeek-V3, arXiv 2412.19437)
    mxfp8          1x32 along the contracted axis, E8M0 scales (arXiv 2310.10537)
    moss           a float32 scale for a vector times an E8M0 scale for each 32 of it; weights one float32 scale (arXiv 2511.05811)
    fp8_delayed    one float32 scale for each tensor, from earlier steps; gradients E5M2 (arXiv 2209.05433)

Shapes: M tokens, K input features, N output features; R x C any matrix, r x c its blocks. An axis whose length is no multiple of the
block ends in a shorter block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from models.precision.formats import (
    E4M3,
    E5M2,
    SMALLEST_SCALE,
    Float8Format,
    dequantize,
    power_of_two_above,
    quantize,
    saturating_cast,
)

MX_BLOCK = 32
TILE = 128


class Blocked(NamedTuple):
    """float8 values (R, C) and scales (ceil(R / r), ceil(C / c)), float32, powers of two unless asked otherwise."""

    values: Tensor
    scales: Tensor


class TwoLevel(NamedTuple):
    """float8 values (R, C), fine scales (R, ceil(C / 32)), powers of two up to 1, and coarse scales (R, 1), float32."""

    values: Tensor
    fine: Tensor
    coarse: Tensor


def block_maxima(x_RC: Tensor, rows: int, columns: int) -> Tensor:
    """max|x| of every rows x columns block, (ceil(R / rows), ceil(C / columns)); NaN where a block holds one."""
    num_rows, num_columns = x_RC.shape
    padded = F.pad(x_RC.float(), (0, -num_columns % columns, 0, -num_rows % rows))
    shape = (-(-num_rows // rows), rows, -(-num_columns // columns), columns)
    return padded.view(shape).abs().amax(dim=(1, 3))


def spread(scales: Tensor, rows: int, columns: int, shape: torch.Size) -> Tensor:
    """Every block's scale at each of its elements, (R, C)."""
    return scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[: shape[0], : shape[1]]


def quantize_blocked(x_RC: Tensor, rows: int, columns: int, fmt: Float8Format = E4M3, *, power_of_two: bool = True) -> Blocked:
    """One scale for each block: 2 ** ceil(log2(max|block| / largest)), so nothing saturates. A block of zeros has scale 2**-120.

    Without `power_of_two` the scale is max|block| / largest itself: up to one more binade above underflow beside outliers, which the
    recipes give up for scales that move no mantissa. A block with a NaN or an infinity is NaN as a whole once dequantised.
    """
    wanted = block_maxima(x_RC, rows, columns) / fmt.largest
    scales = power_of_two_above(wanted) if power_of_two else wanted.clamp(min=SMALLEST_SCALE)
    return Blocked(saturating_cast(x_RC.float() * spread(scales, rows, columns, x_RC.shape).reciprocal(), fmt), scales)


def dequantize_blocked(quantized: Blocked, rows: int, columns: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """values * scale in `dtype`."""
    values = quantized.values.to(dtype)
    return values * spread(quantized.scales, rows, columns, values.shape).to(dtype)


def quantize_two_level(x_RC: Tensor, fmt: Float8Format = E4M3) -> TwoLevel:
    """MOSS activations, blocks of 32 along C: s = max|row| / largest, ss = 2 ** ceil(log2(max|block| / largest / s)) <= 1.

    The ceiling keeps every |x| / (s ss) within the format. A row of zeros has s = 2**-126.
    """
    maxima = block_maxima(x_RC, 1, MX_BLOCK)
    largest = maxima.amax(dim=1, keepdim=True) if maxima.shape[1] else maxima.new_zeros(maxima.shape[0], 1)
    coarse = (largest / fmt.largest).clamp(min=SMALLEST_SCALE)
    inverse = coarse.reciprocal()
    # Scaled first, so that the ratio of two subnormal numbers does not lose its bits.
    fine = power_of_two_above(maxima * inverse / fmt.largest).clamp(max=1.0)
    scaled = x_RC.float() * inverse * spread(fine, 1, MX_BLOCK, x_RC.shape).reciprocal()
    return TwoLevel(saturating_cast(scaled, fmt), fine, coarse)


def dequantize_two_level(quantized: TwoLevel, dtype: torch.dtype = torch.float64) -> Tensor:
    """values * fine * coarse in `dtype`."""
    values = quantized.values.to(dtype)
    return values * spread(quantized.fine, 1, MX_BLOCK, values.shape).to(dtype) * quantized.coarse.to(dtype)


Operand = Callable[[Tensor], Tensor]
"""A matrix to what a recipe makes of it: quantised, dequantised, float64, same shape."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """How a recipe sends each operand of each product through float8 and back."""

    forward_x: Operand
    forward_w: Operand
    dgrad_dy: Operand
    dgrad_w: Operand
    wgrad_dy: Operand
    wgrad_x: Operand

    def forward(self, x_MK: Tensor, weight_NK: Tensor) -> Tensor:
        """y (M, N), float64."""
        return self.forward_x(x_MK) @ self.forward_w(weight_NK).t()

    def dgrad(self, grad_MN: Tensor, weight_NK: Tensor) -> Tensor:
        """dx (M, K), float64."""
        return self.dgrad_dy(grad_MN) @ self.dgrad_w(weight_NK)

    def wgrad(self, grad_MN: Tensor, x_MK: Tensor) -> Tensor:
        """dw (N, K), float64."""
        return self.wgrad_dy(grad_MN).t() @ self.wgrad_x(x_MK)


def rowwise() -> Reference:
    """fp8_rowwise: a scale for each row of the matrix, or each column where rows are contracted."""

    def rows(x: Tensor) -> Tensor:
        return _blocked(x, 1, max(x.shape[1], 1))

    def columns(x: Tensor) -> Tensor:
        return _blocked(x, max(x.shape[0], 1), 1)

    return Reference(forward_x=rows, forward_w=rows, dgrad_dy=rows, dgrad_w=columns, wgrad_dy=columns, wgrad_x=columns)


def blockwise() -> Reference:
    """fp8_blockwise."""

    def along_columns(x: Tensor) -> Tensor:
        return _blocked(x, 1, TILE)

    def along_rows(x: Tensor) -> Tensor:
        return _blocked(x, TILE, 1)

    def tiles(x: Tensor) -> Tensor:
        return _blocked(x, TILE, TILE)

    return Reference(
        forward_x=along_columns, forward_w=tiles, dgrad_dy=along_columns, dgrad_w=tiles, wgrad_dy=along_rows, wgrad_x=along_rows
    )


def mxfp8() -> Reference:
    """mxfp8: E4M3 throughout."""

    def along_columns(x: Tensor) -> Tensor:
        return _blocked(x, 1, MX_BLOCK)

    def along_rows(x: Tensor) -> Tensor:
        return _blocked(x, MX_BLOCK, 1)

    return Reference(
        forward_x=along_columns, forward_w=along_columns, dgrad_dy=along_columns, dgrad_w=along_rows, wgrad_dy=along_rows,
        wgrad_x=along_rows,
    )  # fmt: skip


def moss(weight_scale: float) -> Reference:
    """moss: E4M3 throughout; weights with the scale of `models.precision.moss`."""

    def along_columns(x: Tensor) -> Tensor:
        return dequantize_two_level(quantize_two_level(x))

    def along_rows(x: Tensor) -> Tensor:
        return dequantize_two_level(quantize_two_level(x.t())).t()

    weight = _with_scale(weight_scale, E4M3)
    return Reference(
        forward_x=along_columns, forward_w=weight, dgrad_dy=along_columns, dgrad_w=weight, wgrad_dy=along_rows, wgrad_x=along_rows
    )


def delayed(x_scale: float, weight_scale: float, grad_scale: float) -> Reference:
    """fp8_delayed with these scales; values beyond their range saturate."""
    x, weight, grad = _with_scale(x_scale, E4M3), _with_scale(weight_scale, E4M3), _with_scale(grad_scale, E5M2)
    return Reference(forward_x=x, forward_w=weight, dgrad_dy=grad, dgrad_w=weight, wgrad_dy=grad, wgrad_x=x)


def tensorwise() -> Reference:
    """fp8_tensorwise: `delayed` with the scales of this very moment."""

    def e4m3(x: Tensor) -> Tensor:
        return dequantize(quantize(x, E4M3), torch.float64)

    def e5m2(x: Tensor) -> Tensor:
        return dequantize(quantize(x, E5M2), torch.float64)

    return Reference(forward_x=e4m3, forward_w=e4m3, dgrad_dy=e5m2, dgrad_w=e4m3, wgrad_dy=e5m2, wgrad_x=e4m3)


def _blocked(x: Tensor, rows: int, columns: int) -> Tensor:
    return dequantize_blocked(quantize_blocked(x, rows, columns), rows, columns)


def _with_scale(scale: float, fmt: Float8Format) -> Operand:
    def through(x: Tensor) -> Tensor:
        return dequantize(quantize(x, fmt, torch.tensor(scale, dtype=torch.float32)), torch.float64)

    return through
