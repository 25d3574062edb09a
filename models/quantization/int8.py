"""Symmetric int8 weights, one scale per output channel, rounded to nearest; no calibration data.

In: a float weight (out, in). Out: int8 codes of the same shape and one scale per row. The convention is that of
compressed-tensors: the scale is the row's largest magnitude over half the code range, (127 - (-128)) / 2 = 127.5, not 127.
Shapes: O = output channels (rows), I = input channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CODE_MIN, CODE_MAX = -128, 127
HALF_RANGE = (CODE_MAX - CODE_MIN) / 2
NUM_BITS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Int8Weight:
    """Codes and scales of one linear layer: the stored weight is ``codes_OI * scale_O1``."""

    codes_OI: Tensor
    scale_O1: Tensor


def quantize(weight_OI: Tensor, scale_dtype: torch.dtype = torch.bfloat16) -> Int8Weight:
    """Codes and scales of a weight: s = max|w_row| / 127.5, q = clamp(round(w / s), -128, 127).

    The scale is rounded to ``scale_dtype`` (what the file stores) before the codes are chosen, so the codes are the best ones for
    the scale a loader will see. A row of zeros, or one too small for a scale above zero, gets the dtype's epsilon as scale and
    codes of 0. |w - q*s| is at most 0.5*s, except at a row's largest value, where clamping to 127 with a scale that was rounded down
    (by up to 2^-8 in bfloat16) costs up to 1*s.

    weight_OI: 2-D floating point, finite. Raises ValueError otherwise.
    """
    if weight_OI.ndim != 2 or not weight_OI.is_floating_point():
        raise ValueError(
            f"int8 quantisation got a {weight_OI.dtype} weight of shape {tuple(weight_OI.shape)}; expected a 2-D floating point "
            "weight (out, in): leave other tensors out of the list of linear layers"
        )
    weight_OI = weight_OI.detach().to(torch.float32)
    num_bad = int((~torch.isfinite(weight_OI)).sum())
    if num_bad:
        raise ValueError(
            f"int8 quantisation got {num_bad} non-finite values in a weight of shape {tuple(weight_OI.shape)}; expected finite "
            "weights: export an earlier checkpoint, or look for the step where training diverged"
        )
    scale_O1 = (weight_OI.abs().amax(dim=1, keepdim=True) / HALF_RANGE).to(scale_dtype)
    smallest = torch.tensor(torch.finfo(scale_dtype).eps, dtype=scale_dtype)
    scale_O1 = torch.where(scale_O1 == 0, smallest, scale_O1)
    codes_OI = (weight_OI / scale_O1).clamp(CODE_MIN, CODE_MAX).round().to(torch.int8)
    return Int8Weight(codes_OI=codes_OI, scale_O1=scale_O1)


def dequantize(weight: Int8Weight, dtype: torch.dtype = torch.float32) -> Tensor:
    """The weight a loader computes with: codes times scale, multiplied and rounded in ``dtype``; shape (O, I).

    In float32 the product of an 8-bit code and a bfloat16 scale is exact.
    """
    return weight.codes_OI.to(dtype) * weight.scale_O1.to(dtype)
