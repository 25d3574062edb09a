"""FP8 with one dynamic scale per tensor: E4M3 activations and weights, E5M2 gradients.

The three products of a linear layer (M tokens, K input features, N output features), all on FP8 operands:
    forward        y  = x  w^T    E4M3 x E4M3
    input grad     dx = dy w      E5M2 x E4M3
    weight grad    dw = dy^T x    E5M2 x E4M3
Each operand has the scale max|.| / largest, measured on the spot ("current" or "dynamic" scaling): no state to save, nothing to
saturate. Formats: Micikevicius et al. 2022, arXiv 2209.05433.

This file is the path of real hardware (`torch._scaled_mm`, NVIDIA compute capability 8.9 and up) and the plain reference both
paths are tested against. The CPU path is `emulation.py`.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from models.precision.formats import E4M3, E5M2, Quantized, dequantize, quantize

# torch._scaled_mm needs both dimensions of its second operand, and the inner one of the first, to be multiples of 16.
ALIGNMENT = 16
_MIN_CAPABILITY = (8, 9)


@cache
def _capability(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)


def require_float8(device: torch.device) -> None:
    """Refuse a CUDA device without FP8 units (ValueError)."""
    index = torch.cuda.current_device() if device.index is None else device.index
    found = _capability(index)
    if found < _MIN_CAPABILITY:
        raise ValueError(
            f"precision 'fp8_tensorwise' on {device}: got compute capability {found[0]}.{found[1]}, expected at least "
            f"{_MIN_CAPABILITY[0]}.{_MIN_CAPABILITY[1]}; use precision 'bf16' on this device"
        )


def scaled_mm(a: Quantized, b: Quantized, out_dtype: torch.dtype, *, fast_accumulation: bool) -> Tensor:
    """a @ b for float8 a (M, K) row-major and b (K, N), with per-tensor scales, returned in `out_dtype`.

    b is brought to column-major order, which the kernel asks for; that is free when b is a transposed row-major tensor.
    `fast_accumulation` skips the promotion of partial sums to float32: good enough forward, too coarse for gradients.
    """
    b_values = b.values if b.values.stride(0) == 1 else b.values.t().contiguous().t()
    return torch._scaled_mm(
        a.values, b_values, scale_a=a.scale, scale_b=b.scale, out_dtype=out_dtype, use_fast_accum=fast_accumulation
    )


class _Float8Linear(torch.autograd.Function):
    """Linear layer without bias on float8 operands; keeps one byte an element for the backward pass."""

    @staticmethod
    def forward(ctx, x_MK, weight_NK, weight_values, weight_scale):  # noqa: D102
        x = quantize(x_MK, E4M3)
        ctx.save_for_backward(x.values, x.scale, weight_values, weight_scale)
        ctx.weight_dtype = weight_NK.dtype
        return scaled_mm(x, Quantized(weight_values.t(), weight_scale), x_MK.dtype, fast_accumulation=True)

    @staticmethod
    def backward(ctx, grad_MN):  # noqa: D102
        x_values, x_scale, weight_values, weight_scale = ctx.saved_tensors
        grad = quantize(grad_MN, E5M2)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            weight = Quantized(weight_values, weight_scale)
            grad_x = scaled_mm(grad, weight, grad_MN.dtype, fast_accumulation=False)
        if ctx.needs_input_grad[1]:
            grad_t = Quantized(grad.values.t().contiguous(), grad.scale)
            grad_weight = scaled_mm(grad_t, Quantized(x_values, x_scale), ctx.weight_dtype, fast_accumulation=False)
        return grad_x, grad_weight, None, None


def float8_linear(x_MK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, weight: Quantized) -> Tensor:
    """Linear layer on FP8 hardware (or torch's CPU kernel), (M, N) in x's dtype.

    `weight` is `quantize(weight_NK, E4M3)`. K and N must be multiples of 16; tokens are padded with zeros to a multiple of 16,
    which changes no result: the weight gradient sums over them.
    """
    num_tokens = x_MK.shape[0]
    padding = -num_tokens % ALIGNMENT
    padded = F.pad(x_MK, (0, 0, 0, padding)) if padding else x_MK
    y_MN = _Float8Linear.apply(padded, weight_NK, weight.values, weight.scale)[:num_tokens]
    return y_MN if bias_N is None else y_MN + bias_N


def reference_forward(x_MK: Tensor, weight_NK: Tensor) -> Tensor:
    """y = x w^T on operands sent through float8 and back, accumulated in float64."""
    x, weight = (dequantize(quantize(t, E4M3), torch.float64) for t in (x_MK, weight_NK))
    return x @ weight.t()


def reference_backward(grad_MN: Tensor, x_MK: Tensor, weight_NK: Tensor) -> tuple[Tensor, Tensor]:
    """(dx (M, K), dw (N, K)) on operands sent through float8 and back, accumulated in float64."""
    x, weight = (dequantize(quantize(t, E4M3), torch.float64) for t in (x_MK, weight_NK))
    grad = dequantize(quantize(grad_MN, E5M2), torch.float64)
    return grad @ weight, grad.t() @ x
