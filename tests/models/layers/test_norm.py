"""RMSNorm: a hand-worked row, the fast CPU path against torch's own, exact gradients, low-precision input."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from models.layers.norm import RMSNorm


def filled(size: int, eps: float = 1e-6, dtype: torch.dtype = torch.float32) -> RMSNorm:
    norm = RMSNorm(size, eps).to(dtype)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(size, generator=torch.Generator().manual_seed(1)))
    return norm


@pytest.mark.parametrize("grad", [True, False])
def test_hand_worked_row(grad: bool) -> None:
    norm = RMSNorm(2, 0.5)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 2.0]))
    with torch.set_grad_enabled(grad):
        out = norm(torch.tensor([[3.0, 4.0]]))  # mean square 12.5, plus eps 13
    torch.testing.assert_close(out, torch.tensor([[3 / 13**0.5, 8 / 13**0.5]]))


@pytest.mark.parametrize("shape", [(3, 7, 24), (2, 5, 4, 8), (6,)])
def test_fast_path_equals_the_reference_with_gradients(shape: tuple[int, ...]) -> None:
    norm = filled(shape[-1])
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), requires_grad=True)
    grad = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    expected = F.rms_norm(x, (shape[-1],), norm.weight, norm.eps)
    expected_grads = torch.autograd.grad(expected, (x, norm.weight), grad)
    out = norm(x)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-6)
    # The reductions add in another order than torch's.
    torch.testing.assert_close(torch.autograd.grad(out, (x, norm.weight), grad), expected_grads, atol=2e-6, rtol=1e-5)


def test_gradients_match_finite_differences() -> None:
    norm = filled(5, eps=0.1, dtype=torch.float64)
    x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: torch.func.functional_call(norm, {"weight": w}, (x,)), (x, norm.weight))


def test_gradient_of_a_strided_input() -> None:
    norm = filled(8)
    x = torch.randn(4, 3, 8, requires_grad=True)
    norm(x.transpose(0, 1)).square().sum().backward()
    copy = x.detach().clone().requires_grad_()
    F.rms_norm(copy, (8,), norm.weight, norm.eps).square().sum().backward()
    torch.testing.assert_close(x.grad, copy.grad, atol=1e-5, rtol=1e-5)


def test_low_precision_input_is_normalised_in_float32() -> None:
    x = torch.full((1, 300), 300.0, dtype=torch.float16)  # its square, 90000, overflows float16
    norm = RMSNorm(300, 1e-6)
    out = norm(x)
    assert out.dtype == torch.float16
    torch.testing.assert_close(out, torch.ones(1, 300, dtype=torch.float16))


def test_zero_row_gives_zero_and_finite_gradient() -> None:
    norm = filled(4)
    x = torch.zeros(1, 4, requires_grad=True)
    out = norm(x)
    out.sum().backward()
    assert not out.any()
    assert torch.isfinite(x.grad).all()
