"""RMSNorm: y = weight * x / sqrt(mean(x^2) + eps), computed in float32 whatever the input dtype.

In: x (..., D); out: same shape and dtype. Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", arXiv 1910.07467.
On CPU torch runs F.rms_norm as ten separate passes over memory; `_CpuRMSNorm` needs three forward and six backward, two to four times
faster in training. F.rms_norm stays as its reference and as the path on every other device.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Root-mean-square normalisation over the last dimension with a learned gain `weight` (size,)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.size = size
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Normalises x (..., size) and returns x's dtype; the gain multiplies after the cast, as in Hugging Face models."""
        if x.dtype == self.weight.dtype and x.dtype in (torch.float32, torch.float64):
            if x.device.type == "cpu":
                if not torch.is_grad_enabled():
                    return x.mul(_inverse_rms(x, self.eps)).mul_(self.weight)
                return _CpuRMSNorm.apply(x, self.weight, self.eps)
            return F.rms_norm(x, (self.size,), self.weight, self.eps)
        normed = F.rms_norm(x.float(), (self.size,), None, self.eps).to(x.dtype)
        return normed * self.weight.to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.size}, eps={self.eps}"


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1/sqrt(mean(x^2) + eps) over the last dimension, kept with size 1."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().mul_(1 / x.shape[-1]).add_(eps).rsqrt_()


class _CpuRMSNorm(torch.autograd.Function):
    """With r = 1/sqrt(mean(x^2) + eps) and incoming gradient g:
    dx = r g w - x r^3 sum(g x w) / D and dw = sum over rows of r g x.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        inverse = _inverse_rms(x, eps)
        ctx.save_for_backward(x, weight_D, inverse)
        return torch.mul(x, inverse).mul_(weight_D)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight_D, inverse = ctx.saved_tensors
        size = x.shape[-1]
        product_RD = (grad * x).reshape(-1, size)
        grad_weight_D = torch.mv(product_RD.t(), inverse.reshape(-1))
        # sum(g x w) of every row, then the factor of x.
        pull = torch.mv(product_RD, weight_D).view(inverse.shape).mul_(inverse**3).mul_(1 / size)
        grad_x = (grad * weight_D).mul_(inverse).addcmul_(x, pull, value=-1)
        return grad_x, grad_weight_D, None
