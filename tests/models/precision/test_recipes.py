"""Recipes by name and their offline pair: quantize once, load later."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from models.precision import PrecisionLinear, describe_precision, recipe
from models.precision.formats import E4M3

FP8 = ["fp8_tensorwise", "fp8_rowwise", "fp8_blockwise", "mxfp8", "fp8_delayed", "moss"]


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="got 'fp8', expected one of fp32, bf16, fp8_tensorwise"):
        recipe("fp8")


@pytest.mark.parametrize(("precision", "error"), [("bf16", 2**-8), *((name, 2**-4) for name in FP8)])
def test_quantize_and_load_round_trip_is_idempotent(precision, error):
    weight = torch.randn(48, 32, generator=torch.Generator().manual_seed(1))
    chosen = recipe(precision)
    stored = chosen.quantize(weight)
    loaded = chosen.dequantize(stored)
    assert loaded.dtype == torch.float32
    assert ((loaded - weight).abs() <= error * weight.abs().clamp(min=2**-6 * weight.abs().max() / 448)).all()
    again = chosen.quantize(loaded)
    if precision in ("fp8_rowwise", "fp8_blockwise", "mxfp8"):  # a maximum rounded down to a power of two of codes takes half the scale
        assert torch.equal(chosen.dequantize(again), loaded)
    else:
        assert torch.equal(again["weight"].float(), stored["weight"].float())


def test_stored_float8_weight_is_what_the_layer_multiplies_with():
    torch.manual_seed(2)
    plain = nn.Linear(32, 48, bias=False)
    low = PrecisionLinear(plain, recipe("fp8_tensorwise"))
    stored = low.recipe.quantize(plain.weight)
    assert stored["weight"].dtype == E4M3.dtype and stored["weight_scale"].shape == ()
    rounded = low.recipe.round_weight(plain.weight)
    assert torch.equal(stored["weight"].float(), rounded.values) and stored["weight_scale"].item() == rounded.scale
    loaded = low.recipe.dequantize(stored)
    identity = torch.eye(32) * 448  # exact in E4M3 at scale 1, so each output is one weight times 448
    assert torch.allclose(low(identity).t() / 448, loaded, rtol=1e-6)


@pytest.mark.parametrize(("precision", "scales"), [("fp8_rowwise", (160, 1)), ("fp8_blockwise", (2, 2)), ("mxfp8", (160, 5))])
def test_stored_block_weight_is_what_the_layer_multiplies_with(precision, scales):
    """Scales as one E8M0 byte a block, also of blocks cut short at the edge; 160 = 128 + 32."""
    weight = torch.randn(160, 130, generator=torch.Generator().manual_seed(3)).pow(3)
    chosen = recipe(precision)
    stored = chosen.quantize(weight)
    assert stored["weight_scale"].dtype == torch.uint8 and stored["weight_scale"].shape == scales
    assert torch.equal(chosen.dequantize(stored), chosen.round_weight(weight).values)


def test_emulation_is_said() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert [describe_precision(name, cpu) for name in ("fp32", "bf16", "moss")] == ["fp32", "bf16 (emulated)", "moss (emulated)"]
    assert [describe_precision(name, cuda) for name in ("fp32", "bf16", "moss")] == ["fp32", "bf16", "moss (emulated)"]
