"""models/quantization/int8.py: hand-worked rows, the error bound, the compressed-tensors oracle, EXP-06."""

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize as library_quantize
from compressed_tensors.quantization.utils import calculate_qparams
from hypothesis import given, settings
from hypothesis import strategies as st

from models.quantization import int8

CHANNEL_ARGS = QuantizationArgs(num_bits=8, type="int", symmetric=True, strategy="channel")


def gaussian(rows: int, cols: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed))


def test_hand_worked_row():
    """amax 2.55 gives s = 0.02; -2.55/s = -127.5 rounds half to even to -128, 2.0/s = 100, 0.011/s = 0.55 -> 1."""
    weight = int8.quantize(torch.tensor([[-2.55, 2.0, 0.011, 0.0]]), scale_dtype=torch.float32)
    assert weight.scale_O1.item() == pytest.approx(0.02, rel=1e-6)
    assert weight.codes_OI.tolist() == [[-128, 100, 1, 0]]
    assert torch.allclose(int8.dequantize(weight), torch.tensor([[-2.56, 2.0, 0.02, 0.0]]), atol=1e-6)


def test_largest_positive_value_is_clamped_to_127():
    weight = int8.quantize(torch.tensor([[2.55, -1.0]]), scale_dtype=torch.float32)
    assert weight.codes_OI.tolist() == [[127, -50]]


def test_each_row_has_its_own_scale():
    weight = int8.quantize(torch.tensor([[127.5, 1.0], [1275.0, 10.0]]), scale_dtype=torch.float32)
    assert weight.scale_O1.flatten().tolist() == [1.0, 10.0]
    assert weight.codes_OI[0].tolist() == weight.codes_OI[1].tolist() == [127, 1]


def test_gaussian_error_matches_published_figure():
    """Relative weight error of int8 per channel on Gaussian weights is about 0.8 %."""
    weight_OI = gaussian(256, 1024, seed=1)
    error = int8.dequantize(int8.quantize(weight_OI)) - weight_OI
    assert 0.006 < (error.norm() / weight_OI.norm()).item() < 0.010


def test_exp_06_zero_row_and_single_huge_value_stay_finite():
    """EXP-06: zeros come back as zeros, one huge value does not turn its neighbours into NaN."""
    weight_OI = torch.zeros(4, 8)
    weight_OI[1, 3] = 3e38
    weight_OI[2] = torch.linspace(-1, 1, 8)
    weight_OI[3] = 1e-42
    for scale_dtype in (torch.float32, torch.bfloat16, torch.float16):
        if scale_dtype is torch.float16:
            weight_OI[1, 3] = 60000.0
        weight = int8.quantize(weight_OI, scale_dtype=scale_dtype)
        restored = int8.dequantize(weight)
        assert torch.isfinite(weight.scale_O1).all() and (weight.scale_O1 > 0).all()
        assert torch.isfinite(restored).all()
        assert (restored[0] == 0).all()
        assert (restored[1, [0, 1, 2, 4, 5, 6, 7]] == 0).all()
        assert restored[1, 3].item() == pytest.approx(weight_OI[1, 3].item(), rel=0.01)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 5), cols=st.integers(1, 40), seed=st.integers(0, 2**31), log_size=st.floats(-30, 30), bf16=st.booleans()
)
def test_error_is_within_the_stated_bound(rows, cols, seed, log_size, bf16):
    weight_OI = gaussian(rows, cols, seed) * 10.0**log_size
    weight = int8.quantize(weight_OI, scale_dtype=torch.bfloat16 if bf16 else torch.float32)
    error_OI = (int8.dequantize(weight, torch.float64) - weight_OI.double()).abs()
    unclamped_OI = weight_OI / weight.scale_O1 < 127.5
    bound_OI = torch.where(unclamped_OI, 0.5001, 1.001 if bf16 else 0.5001) * weight.scale_O1.double()
    assert (error_OI <= bound_OI).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scales_and_codes_equal_compressed_tensors(dtype):
    """Same scale rule and same codes as the library, the zero row included."""
    weight_OI = gaussian(16, 48, seed=3)
    weight_OI[5] = 0
    amax_O1 = weight_OI.abs().amax(dim=1, keepdim=True)
    scale_O1, zero_O1 = calculate_qparams(-amax_O1, amax_O1, CHANNEL_ARGS)
    scale_O1 = torch.where(amax_O1 == 0, torch.finfo(dtype).eps, scale_O1).to(dtype)
    codes_OI = library_quantize(weight_OI, scale_O1, zero_O1, CHANNEL_ARGS, dtype=torch.int8)
    ours = int8.quantize(weight_OI, scale_dtype=dtype)
    assert torch.equal(ours.scale_O1, scale_O1)
    assert torch.equal(ours.codes_OI, codes_OI)


def test_dequantize_in_float32_is_exact():
    weight = int8.quantize(gaussian(8, 32, seed=4))
    assert torch.equal(int8.dequantize(weight, torch.float64), int8.dequantize(weight, torch.float32).double())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_weight_is_refused(bad):
    with pytest.raises(ValueError, match="1 non-finite"):
        int8.quantize(torch.tensor([[1.0, bad]]))


@pytest.mark.parametrize("weight", [torch.zeros(3), torch.zeros(2, 2, dtype=torch.int32)])
def test_wrong_rank_or_type_is_refused(weight):
    with pytest.raises(ValueError, match="expected a 2-D floating point"):
        int8.quantize(weight)
