"""Block-scaled FP8 on a CPU: the values of `reference.quantize_blocked` and `quantize_two_level`, dequantised, in a few passes.

In: float matrices. Out: float32 matrices whose elements are float8 values times their block's scale, exactly (two levels: to float32
rounding). A power-of-two scale moves the format's grid by whole binades, so x need not be scaled at all: for a block with scale s,
rounding x to the mantissa width with the exponent held at the smallest normal times s gives cast(x / s) * s. That leaves one pass for
the block maxima and four for the rounding of `emulation.py`, and no pass to dequantise.

Shapes: R x C any matrix; blocks of rows x columns elements, a shorter one at an end that does not divide.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from models.precision.emulation import Rounded
from models.precision.formats import E4M3, SMALLEST_SCALE, Float8Format, power_of_two_above
from models.precision.reference import MX_BLOCK, TILE

_EXPONENT_MASK = 0x7F800000
_WIDE_EXPONENT_MASK = 0x7FF0000000000000
_CHUNK = 128 * 1024
# Above it, the number that pushes mantissa bits out (2**21 times the element) leaves float32; float64 takes over.
_LARGEST_NARROW = 2.0**100


def round_blocked(x_RC: Tensor, rows: int, columns: int, fmt: Float8Format = E4M3) -> Tensor:
    """float32 (R, C): each rows x columns block on the grid of `fmt` times the block's power-of-two scale.

    A block with a NaN or an infinity is NaN as a whole; what rounds up beyond float32's largest number is infinity.
    """
    x_RC = x_RC.detach().float()
    if x_RC.numel() == 0:
        return x_RC.clone()
    blocks, shape = _cut(x_RC, rows, columns), x_RC.shape
    maxima = _maxima(blocks)
    floor = power_of_two_above(maxima / fmt.largest).mul_(fmt.smallest_normal)
    largest = float(maxima.amax())
    if not largest < _LARGEST_NARROW:
        return _join(_round_wide(blocks, floor, fmt), shape)
    out = torch.empty_like(blocks)
    for source, low, target in zip(*_chunks(blocks, floor, out), strict=True):
        _round_above(source, low, fmt, target)
    return _join(out, shape)


def round_two_level(x_RC: Tensor, axis: int, fmt: Float8Format = E4M3) -> Tensor:
    """float32 (R, C): blocks of 32 along `axis` under one float32 scale for each vector along it. NaN and infinity reach their vector."""
    x_RC = x_RC.detach().float()
    if x_RC.numel() == 0:
        return x_RC.clone()
    blocks = _cut(x_RC, 1, MX_BLOCK) if axis == 1 else _cut(x_RC, MX_BLOCK, 1)
    maxima = _maxima(blocks)
    coarse = (maxima.amax(dim=2 if axis == 1 else 0, keepdim=True) / fmt.largest).clamp_(min=SMALLEST_SCALE)
    inverse = coarse.reciprocal()
    floor = power_of_two_above((maxima * inverse).div_(fmt.largest)).clamp_(max=1.0).mul_(fmt.smallest_normal)
    out = torch.empty_like(blocks)
    for source, low, target, up, down in zip(*_chunks(blocks, floor, out, coarse, inverse), strict=True):
        torch.mul(source, down, out=target)
        _round_above(target, low, fmt, target).mul_(up)
    return _join(out, x_RC.shape)


def _chunks(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Each tensor cut along its first axis so that a piece of the first one stays in a core's cache; a length of 1 is repeated."""
    length = tensors[0].shape[0]
    size = max(1, _CHUNK * length // tensors[0].numel())
    pieces = -(-length // size)
    return [t.split(size) if t.shape[0] == length else (t,) * pieces for t in tensors]


def _cut(x_RC: Tensor, rows: int, columns: int) -> Tensor:
    """(ceil(R / rows), rows, ceil(C / columns), columns), a view unless an end has to be filled up with zeros."""
    num_rows, num_columns = x_RC.shape
    if num_rows % rows or num_columns % columns:
        x_RC = F.pad(x_RC, (0, -num_columns % columns, 0, -num_rows % rows))
    x_RC = x_RC.contiguous()
    return x_RC.view(x_RC.shape[0] // rows, rows, x_RC.shape[1] // columns, columns)


def _join(blocks: Tensor, shape: torch.Size) -> Tensor:
    joined = blocks.reshape(blocks.shape[0] * blocks.shape[1], -1)
    return joined if joined.shape == shape else joined[: shape[0], : shape[1]].contiguous()


def _maxima(blocks: Tensor) -> Tensor:
    """max|x| of every block, shaped to broadcast over them. (A vector norm would do without the copy, and takes twice as long or more.)"""
    return torch.cat([piece.abs().amax(dim=(1, 3), keepdim=True) for piece in _chunks(blocks)[0]])


def _round_above(blocks: Tensor, floor: Tensor, fmt: Float8Format, out: Tensor) -> Tensor:
    """Round to `fmt`'s mantissa width, exponents held at `floor` and up. `out` may be `blocks`."""
    magic = 1.5 * 2.0 ** (23 - fmt.mantissa_bits)
    power = blocks.view(torch.int32).bitwise_and(_EXPONENT_MASK).view(torch.float32)
    torch.maximum(power, floor, out=power)
    return torch.add(blocks, power, alpha=magic, out=out).sub_(power, alpha=magic)


def _round_wide(blocks: Tensor, floor: Tensor, fmt: Float8Format) -> Tensor:
    """`_round_above` in float64, for magnitudes near the end of float32."""
    magic = 1.5 * 2.0 ** (52 - fmt.mantissa_bits)
    wide = blocks.double()
    power = wide.view(torch.int64).bitwise_and(_WIDE_EXPONENT_MASK).view(torch.float64)
    power = torch.maximum(power, floor.double())
    return wide.add_(power, alpha=magic).sub_(power, alpha=magic).float()


# The six roundings of the recipes: an input (..., K) counts as (M, K), so results are matrices with a scale of 1.


def _matrix(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def along_features(x: Tensor) -> Rounded:
    """mxfp8, contracted along the last axis."""
    return Rounded(round_blocked(_matrix(x), 1, MX_BLOCK), 1.0)


def along_tokens(x: Tensor) -> Rounded:
    """mxfp8, contracted along the first axis."""
    return Rounded(round_blocked(_matrix(x), MX_BLOCK, 1), 1.0)


def long_along_features(x: Tensor) -> Rounded:
    """fp8_blockwise, contracted along the last axis."""
    return Rounded(round_blocked(_matrix(x), 1, TILE), 1.0)


def long_along_tokens(x: Tensor) -> Rounded:
    """fp8_blockwise, contracted along the first axis."""
    return Rounded(round_blocked(_matrix(x), TILE, 1), 1.0)


def tiles(weight: Tensor) -> Rounded:
    """fp8_blockwise weights, good for both axes."""
    return Rounded(round_blocked(weight, TILE, TILE), 1.0)


def rows(x: Tensor) -> Rounded:
    """fp8_rowwise, contracted along the last axis."""
    matrix = _matrix(x)
    return Rounded(round_blocked(matrix, 1, max(matrix.shape[1], 1)), 1.0)


def columns(x: Tensor) -> Rounded:
    """fp8_rowwise, contracted along the first axis."""
    matrix = _matrix(x)
    return Rounded(round_blocked(matrix, max(matrix.shape[0], 1), 1), 1.0)


def two_level_along_features(x: Tensor) -> Rounded:
    """moss, contracted along the last axis."""
    return Rounded(round_two_level(_matrix(x), 1), 1.0)


def two_level_along_tokens(x: Tensor) -> Rounded:
    """moss, contracted along the first axis."""
    return Rounded(round_two_level(_matrix(x), 0), 1.0)
