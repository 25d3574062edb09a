"""Fast block rounding against the references, bit for bit where the arithmetic is exact."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.precision.blocks import round_blocked, round_two_level
from models.precision.emulation import round_to_grid
from models.precision.formats import E2M1
from models.precision.reference import (
    dequantize_blocked,
    dequantize_two_level,
    quantize_blocked,
    quantize_two_level,
)

BLOCKS = [(1, 32), (32, 1), (1, 128), (128, 1), (128, 128), (1, 10_000), (10_000, 1)]


def same(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return got.dtype == torch.float32 and torch.equal(got.double().nan_to_num(7, 8, 9), expected.nan_to_num(7, 8, 9))


@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (64, 96), (130, 200), (128, 256), (0, 32), (32, 0)], ids=str)
def test_blocks_equal_the_reference(block, shape):
    """Whole and partial blocks; magnitudes over all of float32, where the float64 detour and the smallest scales come in."""
    base = torch.randn(shape, generator=torch.Generator().manual_seed(1)).clamp(-3, 3).pow(5)
    for factor in (1.0, 1e-42, 1e-36, 1e30, 1e35):
        x = base * factor
        x[:1] = 0
        assert same(round_blocked(x, *block), dequantize_blocked(quantize_blocked(x, *block), *block))


@settings(deadline=None)
@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=70))
def test_any_float32_pattern(bits):
    """FP8-05: NaN and infinity among them. What rounds up past float32's end is infinity."""
    x = torch.from_numpy(np.array([bits], dtype=np.uint32).view(np.float32).copy())
    for block in ((1, 32), (32, 1)):
        expected = dequantize_blocked(quantize_blocked(x, *block), *block)
        assert same(round_blocked(x, *block), expected.float().double())


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (64, 96), (130, 200), (0, 32), (32, 0)], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_two_levels_equal_the_reference_up_to_one_float32_rounding(shape, axis):
    base = torch.randn(shape, generator=torch.Generator().manual_seed(2)).clamp(-3, 3).pow(5)
    for factor in (1.0, 1e-42, 1e-36, 1e35):
        x = base * factor
        got = round_two_level(x, axis).double()
        expected = dequantize_two_level(quantize_two_level(x)) if axis else dequantize_two_level(quantize_two_level(x.t())).t()
        assert got.shape == x.shape
        assert ((got - expected).abs() <= 2**-24 * expected.abs() + 2.0**-149).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_fp8_05_bad_values_stay_visible_and_zeros_stay_zero(bad):
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(3))
    x[1] = 0
    x[5, 40] = bad
    for got in (round_blocked(x, 1, 32), round_blocked(x, 32, 1), round_two_level(x, 1), round_two_level(x, 0)):
        assert not got[5, 40].isfinite() and torch.equal(got[1, :32], torch.zeros(32))
    assert round_blocked(x, 1, 32)[:5].isfinite().all() and round_two_level(x, 1)[6:].isfinite().all()


def test_input_is_not_modified_and_strides_do_not_matter():
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(4))
    kept = x.clone()
    assert torch.equal(round_blocked(x.t(), 1, 32), round_blocked(x, 32, 1).t())
    assert torch.equal(round_two_level(x.t(), 1), round_two_level(x, 0).t())
    assert torch.equal(x, kept)


def test_four_bit_grid_and_its_ties():
    """0 .5 1 1.5 2 3 4 6; ties .25 > 0, .75 > 1, 1.25 > 1, 1.75 > 2, 2.5 > 2, 3.5 > 4, 5 > 4."""
    x = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5])
    assert round_to_grid(x, 1.0, E2M1).tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, 1, 1, 2, 2, 4, 4]
    got = round_blocked(torch.tensor([[6.0, 2.4, 0.2, -7.0]]), 1, 2, E2M1)
    # max 7 > 6: scale 2, so 0.2 / 2 rounds to 0 and 7 / 2 = 3.5, a tie, to 4.
    assert got.tolist() == [[6.0, 2.0, 0.0, -8.0]]
