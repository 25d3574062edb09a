"""FP8 formats: casts, scales and counters against values decoded from the bit patterns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.precision.formats import (
    E4M3,
    E5M2,
    SMALLEST_SCALE,
    CastStats,
    cast_stats,
    dequantize,
    dynamic_scale,
    quantize,
    quantize_e4m3,
    quantize_e5m2,
    saturating_cast,
)

FORMATS = [E4M3, E5M2]


def grid(fmt) -> np.ndarray:
    """All non-negative finite values of a format, ascending, from exponent and mantissa; the index's lowest bit is the mantissa's."""
    exponent_bits = 7 - fmt.mantissa_bits
    bias = 2 ** (exponent_bits - 1) - 1
    steps = 2**fmt.mantissa_bits
    subnormal = [m / steps * 2.0 ** (1 - bias) for m in range(steps)]
    normal = [(1 + m / steps) * 2.0 ** (e - bias) for e in range(1, 2**exponent_bits) for m in range(steps)]
    return np.array([v for v in subnormal + normal if v <= fmt.largest])


def nearest(values: np.ndarray, fmt) -> np.ndarray:
    """Round to nearest, ties to even, by search in the grid; overflow saturates."""
    points = grid(fmt)
    magnitude = np.minimum(np.abs(values.astype(np.float64)), fmt.largest)
    above = np.searchsorted(points, magnitude)
    below = np.maximum(above - 1, 0)
    gap_up, gap_down = points[above] - magnitude, magnitude - points[below]
    take_up = (gap_up < gap_down) | ((gap_up == gap_down) & (above % 2 == 0))
    return np.copysign(np.where(take_up, points[above], points[below]), values)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_constants_agree_with_the_bit_layout(fmt):
    info = torch.finfo(fmt.dtype)
    assert fmt.largest == info.max == grid(fmt)[-1]
    assert fmt.smallest_normal == info.smallest_normal == grid(fmt)[2**fmt.mantissa_bits]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_every_code_survives_and_every_midpoint_goes_to_even(fmt):
    points = grid(fmt)
    values = np.concatenate([points, (points[1:] + points[:-1]) / 2])
    values = np.concatenate([values, -values]).astype(np.float32)
    cast = saturating_cast(torch.from_numpy(values), fmt).float().numpy()
    np.testing.assert_array_equal(cast, nearest(values, fmt))
    np.testing.assert_array_equal(cast[: len(points)], points)


@pytest.mark.parametrize(
    ("fmt", "value", "expected"),
    [
        (E4M3, 449.0, 448.0), (E4M3, 465.0, 448.0), (E4M3, 1e4, 448.0), (E4M3, -1e30, -448.0),
        (E5M2, 449.0, 448.0), (E5M2, 465.0, 448.0), (E5M2, 1e4, 10240.0), (E5M2, 61440.0, 57344.0), (E5M2, -1e30, -57344.0),
        (E5M2, math.inf, math.inf), (E5M2, -math.inf, -math.inf),
    ],
)  # fmt: skip
def test_fp8_02_finite_overflow_saturates_in_both_formats(fmt, value, expected):
    assert saturating_cast(torch.tensor([value]), fmt).float().item() == expected


@pytest.mark.parametrize(("fmt", "value"), [(E4M3, math.nan), (E4M3, math.inf), (E4M3, -math.inf), (E5M2, math.nan)])
def test_fp8_02_true_nonfinite_is_never_hidden(fmt, value):
    # Plain .to(float8_e4m3fn) on CPU turns infinity into 448.
    assert saturating_cast(torch.tensor([value]), fmt).float().isnan().item()


def test_fp8_02_stale_scale_saturates_counts_and_catches_up():
    """Delayed scaling in miniature: activations grow 100-fold between two steps while the scale is still the old one."""
    x = torch.linspace(-1, 1, 1001)
    stale = dynamic_scale(x, E4M3)
    grown = 100 * x
    values = quantize(grown, E4M3, stale).values.float()
    assert values.isfinite().all() and values.abs().max() == 448
    assert cast_stats(grown / stale, E4M3) == CastStats(saturated=int((grown.abs() > 1.0000001).sum()), nonfinite=0)
    caught_up = quantize(grown, E4M3)
    assert cast_stats(grown / caught_up.scale, E4M3).saturated == 0
    assert (dequantize(caught_up) - grown).abs().max() <= 100 / 16


def test_cast_stats_tells_saturated_from_nonfinite():
    x = torch.tensor([1.0, 448.0, 449.0, -1e9, math.inf, -math.inf, math.nan])
    assert cast_stats(x, E4M3) == CastStats(saturated=2, nonfinite=3)
    assert cast_stats(x, E5M2) == CastStats(saturated=1, nonfinite=3)


def test_fp8_01_zeros_have_a_finite_scale():
    quantized = quantize(torch.zeros(4, 4), E4M3)
    assert quantized.scale == SMALLEST_SCALE and quantized.scale.reciprocal().isfinite()
    assert torch.equal(dequantize(quantized), torch.zeros(4, 4))
    assert dynamic_scale(torch.empty(0, 16), E4M3) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_fp8_05_a_nonfinite_element_makes_the_scale_nonfinite(fmt, bad):
    x = torch.ones(64)
    x[17] = bad
    assert not dynamic_scale(x, fmt).isfinite()
    assert not dequantize(quantize(x, fmt)).isfinite().any()


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@settings(deadline=None)
@given(power=st.integers(-60, 60), seed=st.integers(0, 1000))
def test_scaling_by_a_power_of_two_keeps_the_codes(fmt, power, seed):
    x = torch.randn(33, generator=torch.Generator().manual_seed(seed))
    plain, scaled = quantize(x, fmt), quantize(x * 2.0**power, fmt)
    assert torch.equal(plain.values.float(), scaled.values.float())
    assert scaled.scale == plain.scale * 2.0**power


@settings(deadline=None)
@given(values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=40))
def test_relative_error_is_at_most_half_a_step(values):
    """Normal numbers: 2**-4 relative in E4M3, 2**-3 in E5M2; below the smallest normal half a subnormal step."""
    x = torch.tensor(values, dtype=torch.float32)
    for quantizer, fmt in ((quantize_e4m3, E4M3), (quantize_e5m2, E5M2)):
        quantized = quantizer(x)
        error = (dequantize(quantized, torch.float64) - x.double()).abs()
        half_step = 2.0 ** -(fmt.mantissa_bits + 1)
        bound = torch.maximum(x.double().abs(), quantized.scale.double() * fmt.smallest_normal) * half_step
        assert (error <= bound * (1 + 1e-6) + 1e-44).all()
        assert (quantized.values.float().abs().max() == fmt.largest) or x.abs().max() < fmt.largest * SMALLEST_SCALE


@pytest.mark.parametrize(("quantizer", "low", "high"), [(quantize_e4m3, 31.0, 32.3), (quantize_e5m2, 25.0, 26.4)])
def test_signal_to_noise_of_gaussian_data(quantizer, low, high):
    """E4M3 gives 31.5 dB on generic data; one mantissa bit less costs 6 dB."""
    x = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    noise = dequantize(quantizer(x)) - x
    assert low < 10 * math.log10(float(x.square().mean() / noise.square().mean())) < high


def test_quantize_accepts_bfloat16_and_dequantize_returns_the_asked_dtype():
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    quantized = quantize_e4m3(x)
    assert quantized.scale.dtype == torch.float32
    assert dequantize(quantized, torch.bfloat16).dtype == torch.bfloat16
    exact = quantized.values.double() * quantized.scale.double()
    assert torch.equal(dequantize(quantized, torch.float64), exact)
