"""The hardware path of per-tensor FP8, run on torch's CPU kernel, and both paths against the float64 reference."""

from __future__ import annotations

import math

import pytest
import torch

from models.precision import tensorwise
from models.precision.emulation import emulated_linear, round_float8
from models.precision.formats import E4M3, E5M2, dequantize, quantize, quantize_e4m3
from models.precision.tensorwise import float8_linear, reference_backward, reference_forward, require_float8, scaled_mm


def operands(rows: int = 48, dtype: torch.dtype = torch.float32, device: str = "cpu"):
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(rows, 64, generator=generator).to(device, dtype).requires_grad_()
    weight = (0.05 * torch.randn(96, 64, generator=generator)).to(device, dtype).requires_grad_()
    bias = torch.randn(96, generator=generator).to(device, dtype).requires_grad_()
    grad = (1e-4 * torch.randn(rows, 96, generator=generator)).to(device, dtype)
    return x, weight, bias, grad


def check_against_reference(y, x, weight, bias, grad, tolerance):
    """Relative to the largest element: the operands are the same FP8 codes, so only the accumulation differs."""
    expected_x, expected_weight = reference_backward(grad, x.detach(), weight.detach())
    expected_y = reference_forward(x.detach(), weight.detach()) + bias.detach().double()
    for got, expected in ((y, expected_y), (x.grad, expected_x), (weight.grad, expected_weight)):
        assert (got.double() - expected).abs().max() <= tolerance * expected.abs().max()
    assert torch.allclose(bias.grad.double(), grad.double().sum(0), rtol=1e-2, atol=1e-6)


def test_reference_on_hand_worked_numbers():
    """x: scale 1, values exact. w: amax 896 -> scale 2; 100 / 2 = 50 lies between 48 and 52 and is 48-bound by 2, 52-bound by 2: even, 48."""
    x = torch.tensor([[448.0, 1.0]])
    weight = torch.tensor([[896.0, 100.0], [0.0, 96.0]])
    assert reference_forward(x, weight).tolist() == [[448 * 896 + 96.0, 96.0]]
    # dy: amax 57344 -> scale 1; 5 lies in [4, 8) with step 1, exact in E5M2; 9 lies in [8, 16) with step 2: tie of 8 and 10, even, 8.
    grad_x, grad_weight = reference_backward(torch.tensor([[57344.0, 9.0]]), x, weight)
    assert grad_x.tolist() == [[57344 * 896.0, 57344 * 96.0 + 8 * 96.0]]
    assert grad_weight.tolist() == [[57344 * 448.0, 57344.0], [8 * 448.0, 8.0]]


@pytest.mark.parametrize("rows", [48, 16, 1, 37])
def test_hardware_path_equals_reference_also_with_padded_tokens(rows):
    x, weight, bias, grad = operands(rows)
    y = float8_linear(x, weight, bias, quantize_e4m3(weight.detach()))
    y.backward(grad)
    assert y.shape == (rows, 96) and x.grad.shape == x.shape
    check_against_reference(y, x, weight, bias, grad, 1e-5)


def test_emulated_path_equals_reference():
    x, weight, bias, grad = operands()
    y = emulated_linear(x, weight, bias, round_float8(x, E4M3), round_float8(weight, E4M3), lambda g: round_float8(g, E5M2))
    y.backward(grad)
    check_against_reference(y, x, weight, bias, grad, 1e-5)


def test_hardware_path_keeps_bfloat16():
    x, weight, bias, grad = operands(dtype=torch.bfloat16)
    y = float8_linear(x, weight, bias, quantize_e4m3(weight.detach()))
    y.backward(grad)
    assert y.dtype == x.grad.dtype == weight.grad.dtype == torch.bfloat16
    check_against_reference(y, x, weight, bias, grad, 2**-7)


def test_frozen_weight_and_leaf_input_need_no_gradient():
    x, weight, _, grad = operands()
    float8_linear(x, weight.detach(), None, quantize_e4m3(weight.detach())).backward(grad)
    assert x.grad is not None and weight.grad is None
    float8_linear(x.detach(), weight, None, quantize_e4m3(weight.detach())).backward(grad)
    assert weight.grad is not None


def test_second_operand_is_passed_column_major():
    """The GPU kernel refuses a row-major second operand; the CPU one takes both, so both orders must reach it as one."""
    generator = torch.Generator().manual_seed(12)
    a, b = (quantize(torch.randn(32, 32, generator=generator), E4M3) for _ in range(2))
    row_major = scaled_mm(a, b, torch.float32, fast_accumulation=False)
    column_major = scaled_mm(a, b._replace(values=b.values.t().contiguous().t()), torch.float32, fast_accumulation=False)
    assert torch.equal(row_major, column_major)
    expected = dequantize(a, torch.float64) @ dequantize(b, torch.float64)
    assert (row_major.double() - expected).abs().max() < 1e-5 * expected.abs().max()


def test_anchor_relative_error_of_a_long_product():
    """K = 4096, both operands E4M3 Gaussian: relative Frobenius error 0.0375, gate 0.045."""
    generator = torch.Generator().manual_seed(13)
    x, weight = torch.randn(64, 4096, generator=generator), torch.randn(64, 4096, generator=generator)
    exact = x.double() @ weight.double().t()
    error = (reference_forward(x, weight) - exact).norm() / exact.norm()
    assert 0.033 < error < 0.045


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_fp8_05_bad_values_leave_the_hardware_path_as_nonfinite(bad):
    x, weight, _, grad = operands()
    grad[3, 5] = bad
    float8_linear(x, weight, None, quantize_e4m3(weight.detach())).backward(grad)
    assert not x.grad[3].isfinite().any() and not weight.grad[5].isfinite().any()
    with torch.no_grad():
        x[2, 2] = bad
    assert not float8_linear(x, weight, None, quantize_e4m3(weight.detach()))[2].isfinite().any()


def test_fp8_01_zero_operands_give_zeros():
    zero_x, zero_w = torch.zeros(16, 32, requires_grad=True), torch.zeros(48, 32, requires_grad=True)
    y = float8_linear(zero_x, zero_w, None, quantize_e4m3(zero_w.detach()))
    y.backward(torch.zeros(16, 48))
    for tensor in (y, zero_x.grad, zero_w.grad):
        assert torch.equal(tensor, torch.zeros_like(tensor))


def test_device_without_fp8_units_is_refused_before_any_work(monkeypatch):
    monkeypatch.setattr(tensorwise, "_capability", {0: (8, 0), 1: (8, 9), 2: (9, 0)}.__getitem__)
    with pytest.raises(ValueError, match=r"got compute capability 8\.0, expected at least 8\.9; use precision 'bf16'"):
        require_float8(torch.device("cuda", 0))
    require_float8(torch.device("cuda", 1))
    require_float8(torch.device("cuda", 2))


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-3), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("rows", [48, 37])
def test_real_hardware_equals_reference(dtype, tolerance, rows):
    """Looser forward than on CPU: Hopper keeps about 14 accumulator bits with fast accumulation."""
    x, weight, bias, grad = operands(rows, dtype, "cuda")
    require_float8(x.device)
    y = float8_linear(x, weight, bias, quantize_e4m3(weight.detach()))
    y.backward(grad)
    check_against_reference(y, x, weight, bias, grad, tolerance)
