"""CPU emulation: exact rounding against the float8 cast and the bit patterns, products against float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.precision import emulation
from models.precision.emulation import Rounded, emulated_linear, round_bfloat16, round_float8, round_to_grid, scale_pair
from models.precision.formats import E4M3, E5M2, dynamic_scale
from tests.models.precision.test_formats import grid, nearest

FORMATS = [E4M3, E5M2]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_all_codes_midpoints_and_their_float32_neighbours(fmt):
    """The places where rounding can go wrong: exactly on a tie, and one float32 step to either side, normal and subnormal."""
    points = grid(fmt)
    values = np.concatenate([points, (points[1:] + points[:-1]) / 2]).astype(np.float32)
    values = np.concatenate([values, np.nextafter(values, np.float32(0)), np.nextafter(values, np.float32(np.inf))])
    values = np.concatenate([values, -values])
    values = values[np.abs(values) <= fmt.largest * (1 + 2**-22)]
    rounded = round_to_grid(torch.from_numpy(values), 1.0, fmt).numpy()
    np.testing.assert_array_equal(rounded, nearest(values, fmt))


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("shape", [(7,), (64, 128), (3, 5, 16), (1025, 300)], ids=str)
def test_equals_the_float8_cast(fmt, shape):
    """Both sides of the chunk limit (131072 elements), several shapes, a heavy-tailed distribution."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3)).pow(7)
    inverse = dynamic_scale(x, fmt).reciprocal().item()
    rounded = round_to_grid(x, inverse, fmt)
    assert rounded.shape == x.shape and rounded.dtype == torch.float32
    assert torch.equal(rounded, (x * inverse).to(fmt.dtype).float())


@settings(deadline=None)
@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_any_finite_float32_pattern(bits):
    x = torch.from_numpy(np.array(bits, dtype=np.uint32).view(np.float32).copy())
    x = x[x.isfinite()]
    for fmt in FORMATS:
        scale, inverse = scale_pair(x, fmt)
        assert math.isfinite(inverse)
        np.testing.assert_array_equal(round_to_grid(x, inverse, fmt).numpy(), nearest((x * inverse).numpy(), fmt))


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_input_is_not_modified_and_strides_do_not_matter(fmt):
    x = torch.randn(40, 24, generator=torch.Generator().manual_seed(4))
    kept = x.clone()
    transposed = round_to_grid(x.t(), 2.0, fmt)
    assert torch.equal(x, kept)
    assert torch.equal(transposed, round_to_grid(x, 2.0, fmt).t())


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@settings(deadline=None)
@given(values=st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), max_size=20))
def test_scale_pair_is_the_dynamic_scale_bit_for_bit(fmt, values):
    x = torch.tensor(values, dtype=torch.float32)
    expected = dynamic_scale(x, fmt)
    scale, inverse = scale_pair(x, fmt)
    np.testing.assert_array_equal([scale, inverse], [expected.item(), expected.reciprocal().item()])


def test_bfloat16_rounding_keeps_values_and_nonfinite():
    x = torch.tensor([1.0, 1 + 2**-8, 1 + 2**-7, -3.14159, math.inf, math.nan])
    values, scale = round_bfloat16(x)
    assert scale == 1.0
    # 1 + 2**-8 is the midpoint of 1 and 1 + 2**-7 and goes to the even neighbour, 1.
    assert values[:4].tolist() == [1.0, 1.0, 1 + 2**-7, -3.140625]
    assert values[4].isinf() and values[5].isnan()


def operands(rows: int = 48, features_in: int = 32, features_out: int = 80):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(rows, features_in, generator=generator, requires_grad=True)
    weight = torch.randn(features_out, features_in, generator=generator, requires_grad=True)
    bias = torch.randn(features_out, generator=generator, requires_grad=True)
    grad = torch.randn(rows, features_out, generator=generator)
    return x, weight, bias, grad


def to_e4m3(x):
    return round_float8(x, E4M3)


def to_e5m2(x):
    return round_float8(x, E5M2)


def double(rounded: Rounded) -> torch.Tensor:
    return rounded.values.double() * rounded.scale


def test_products_use_the_rounded_operands_and_nothing_else():
    """All three products against float64 products of the same rounded operands; the bias gradient is not rounded."""
    x, weight, bias, grad = operands()
    y = emulated_linear(x, weight, bias, to_e4m3(x), to_e4m3(weight), to_e5m2)
    y.backward(grad)
    rx, rw, rg = double(to_e4m3(x)), double(to_e4m3(weight)), double(to_e5m2(grad))
    for got, expected in (
        (y, rx @ rw.t() + bias.double()),
        (x.grad, rg @ rw),
        (weight.grad, rg.t() @ rx),
        (bias.grad, grad.double().sum(0)),
    ):
        assert (got.double() - expected).abs().max() <= 1e-5 * expected.abs().max()
        assert got.dtype == torch.float32


def test_identity_rounding_is_a_plain_linear_layer():
    x, weight, bias, grad = operands()
    exact = lambda t: Rounded(t.detach(), 1.0)  # noqa: E731
    y = emulated_linear(x, weight, bias, exact(x), exact(weight), exact)
    mine = torch.autograd.grad(y, (x, weight, bias), grad)
    plain = torch.nn.functional.linear(x, weight, bias)
    theirs = torch.autograd.grad(plain, (x, weight, bias), grad)
    for a, b in zip((y, *mine), (plain, *theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_only_needed_gradients_are_computed():
    x, weight, bias, grad = operands()
    calls = []

    def counting(t):
        calls.append(t.shape)
        return to_e5m2(t)

    frozen = weight.detach()
    emulated_linear(x, frozen, None, to_e4m3(x), to_e4m3(frozen), counting).backward(grad)
    assert x.grad is not None and len(calls) == 1
    leaf = x.detach()
    emulated_linear(leaf, frozen, bias, to_e4m3(leaf), to_e4m3(frozen), counting).backward(grad)
    assert len(calls) == 1 and torch.allclose(bias.grad, grad.sum(0))


def test_no_grad_gives_the_same_numbers_without_a_graph():
    x, weight, bias, _ = operands()
    with_graph = emulated_linear(x, weight, bias, to_e4m3(x), to_e4m3(weight), to_e5m2)
    with torch.no_grad():
        without = emulated_linear(x, weight, bias, to_e4m3(x), to_e4m3(weight), to_e5m2)
    assert not without.requires_grad and torch.equal(with_graph, without)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nonfinite_scale_reaches_every_element_even_through_zeros(bad):
    zeros = torch.zeros(4, 16)
    assert emulation.scaled_product(zeros, zeros.t(), bad).isnan().all()
    assert emulation.scaled_product(zeros, zeros.t(), bad, torch.zeros(4)).isnan().all()
