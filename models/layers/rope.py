"""Rotary position embedding, half-split layout (element i is paired with element i + D/2), as in Hugging Face Llama and Qwen.

In: positions (B, T) and queries or keys (B, T, heads, D); out: the rotated tensor. Angle of pair i at position p is p * base^(-2i/D).
Su et al. 2021, "RoFormer", arXiv 2104.09864.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def inverse_frequencies(head_dim: int, base: float, device: torch.device | str | None = None) -> Tensor:
    """Angular speed of each pair in radians per position: base^(-2i/D), float32, shape (D/2,)."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    return 1.0 / (base**exponents)


def rope_tables(positions_BT: Tensor, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """(cos, cos) and (-sin, sin) side by side, each (B, T, 1, D) float32; made once per forward pass and shared by every layer.

    With the sign folded in, a rotation is x * cos + swap(x) * sin, where swap exchanges the halves of x.
    """
    angles = (positions_BT[..., None].float() * inverse_frequencies(head_dim, base, positions_BT.device)).unsqueeze(-2)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x_BTND: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates every pair of x (B, T, heads, D) by its angle, in the tables' precision; returns x's dtype."""
    if x_BTND.device.type == "cpu" and x_BTND.dtype == cos.dtype:
        return _CpuRotate.apply(x_BTND, cos, sin)
    return rotate_reference(x_BTND, cos, sin)


def rotate_reference(x_BTND: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The rotation in plain operations: any device and dtype."""
    swapped = x_BTND.roll(x_BTND.shape[-1] // 2, dims=-1)
    return (x_BTND * cos + swapped * sin).to(x_BTND.dtype)


class _CpuRotate(torch.autograd.Function):
    """The same with one temporary less; keeps nothing of x, since the backward pass is the rotation by the opposite angle."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, dims=-1), sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return (grad * cos).addcmul_(grad.roll(grad.shape[-1] // 2, dims=-1), sin, value=-1), None, None
