"""The precision layer: shapes and dtypes, rounding done once, weights held, field cases on a whole layer."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch
from torch import nn

from models.optimizers.guard import guarded_step
from models.precision import PrecisionLinear, hold_weights, recipe, reference

NAMES = ["bf16", "fp8_tensorwise", "fp8_rowwise", "fp8_blockwise", "mxfp8", "fp8_delayed", "moss"]


def layer(precision: str = "fp8_tensorwise", bias: bool = False, features: tuple[int, int] = (32, 48)) -> PrecisionLinear:
    torch.manual_seed(21)
    return PrecisionLinear(nn.Linear(*features, bias=bias), recipe(precision))


def counting(linear: PrecisionLinear) -> dict[str, int]:
    """Count the roundings of a layer by operand."""
    counts = {"round_input": 0, "round_weight": 0, "round_gradient": 0}

    def counted(name):
        original = getattr(linear.recipe, name)

        def call(x):
            counts[name] += 1
            return original(x)

        return call

    linear.recipe = dataclasses.replace(linear.recipe, **{name: counted(name) for name in counts})
    return counts


@pytest.mark.parametrize("precision", NAMES)
@pytest.mark.parametrize("shape", [(32,), (5, 32), (2, 3, 32), (0, 32)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shape_and_dtype_follow_the_input(precision, shape, dtype):
    y = layer(precision, bias=True)(torch.ones(shape, dtype=dtype))
    assert y.shape == (*shape[:-1], 48) and y.dtype == dtype


@pytest.mark.parametrize("precision", NAMES)
def test_close_to_float32_but_not_equal(precision):
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(22))
    low = layer(precision, bias=True)
    with torch.no_grad():
        plain = nn.functional.linear(x, low.weight, low.bias)
        relative = float((low(x) - plain).norm() / plain.norm())
    assert 1e-4 < relative < (0.005 if precision == "bf16" else 0.05)


def test_layers_fed_by_the_same_tensor_round_it_once():
    first = layer()
    counts = counting(first)
    second = PrecisionLinear(nn.Linear(32, 16), first.recipe)
    x = torch.randn(4, 32)
    together = second(x), first(x)
    assert counts["round_input"] == 1
    assert torch.equal(together[0], second(x.clone()))
    x.add_(1)
    fresh = second(x)
    assert counts["round_input"] == 3
    assert torch.equal(fresh, second(x.clone()))


def test_another_recipe_does_not_reuse_the_rounded_input():
    x = torch.randn(4, 32)
    fp8, bf16 = layer("fp8_tensorwise"), layer("bf16")
    alone = bf16(x.clone())
    fp8(x)
    assert torch.equal(bf16(x), alone)


def test_inference_mode_is_always_fresh():
    low = layer()
    with torch.inference_mode():
        x = torch.randn(4, 32)
        before = low(x)
        x.mul_(0)
        assert before.abs().sum() > 0 and torch.equal(low(x), torch.zeros(4, 48))


def test_backward_rounds_only_the_gradient():
    low = layer()
    counts = counting(low)
    low(torch.randn(4, 32, requires_grad=True)).sum().backward()
    assert counts == {"round_input": 1, "round_weight": 1, "round_gradient": 1}


def test_held_weights_are_rounded_once_and_give_the_same_numbers():
    model = nn.Sequential(layer(features=(32, 32)), layer(features=(32, 32)))
    counts = counting(model[0])
    x = torch.randn(4, 32)
    free = model(x)
    with hold_weights(model):
        with hold_weights(model):
            held = [model(x) for _ in range(3)]
        held.append(model(x))
    assert counts["round_weight"] == 2
    assert all(torch.equal(free, y) for y in held)
    model(x)
    assert counts["round_weight"] == 3


def test_weights_changed_after_the_block_are_seen():
    """A fused optimizer does not advance the version counter, so only the end of the block can refresh the copy."""
    model = nn.Sequential(layer())
    optim = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    x = torch.randn(4, 32)
    with hold_weights(model):
        before = model(x)
        before.square().sum().backward()
    optim.step()
    assert not torch.equal(model(x), before)


@pytest.mark.parametrize("precision", NAMES)
def test_held_weights_give_the_same_gradients(precision):
    """Also when the block begins with a forward that needs no gradient, and none of the backward's operands."""
    model = nn.Sequential(layer(precision))
    x = torch.randn(4, 32, requires_grad=True)
    model(x).square().sum().backward()
    free = model[0].weight.grad.clone(), x.grad.clone()
    model.zero_grad()
    x.grad = None
    with hold_weights(model):
        with torch.no_grad():
            model(x)
        model(x).square().sum().backward()
    assert torch.equal(model[0].weight.grad, free[0]) and torch.equal(x.grad, free[1])


REFERENCES = {
    "fp8_rowwise": reference.rowwise(), "fp8_blockwise": reference.blockwise(), "mxfp8": reference.mxfp8(), "fp8_tensorwise": reference.tensorwise(),
    "fp8_delayed": reference.tensorwise(),
}  # fmt: skip


@pytest.mark.parametrize("precision", [*REFERENCES, "moss"])
@pytest.mark.parametrize("tokens", [1, 37, 200])
def test_three_products_equal_the_reference(precision, tokens):
    """Odd token counts and partial blocks; a layer without history delays nothing. Only the accumulation differs: 1e-5."""
    low = layer(precision, features=(160, 48))
    generator = torch.Generator().manual_seed(23)
    x = torch.randn(1, tokens, 160, generator=generator).pow(3).requires_grad_()
    grad = 1e-4 * torch.randn(1, tokens, 48, generator=generator)
    y = low(x)
    y.backward(grad)
    chosen = reference.moss(low.scales.round_weight(low.weight).scale) if precision == "moss" else REFERENCES[precision]
    weight, x_MK, grad_MN = low.weight.detach(), x.detach()[0], grad[0]
    for got, expected in (
        (y[0], chosen.forward(x_MK, weight)), (x.grad[0], chosen.dgrad(grad_MN, weight)), (low.weight.grad, chosen.wgrad(grad_MN, x_MK)),
    ):  # fmt: skip
        assert (got.double() - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_copies_and_state_dicts_are_those_of_a_linear_layer():
    low = layer(bias=True)
    copied = copy.deepcopy(low)
    x = torch.randn(4, 32)
    assert torch.equal(copied(x), low(x)) and copied.weight is not low.weight
    assert list(low.state_dict()) == ["weight", "bias"]
    assert "precision=fp8_tensorwise" in repr(low)


@pytest.mark.parametrize("precision", NAMES)
def test_fp8_01_zero_rows_zero_weight_zero_gradient(precision):
    """An all-zero input row, an all-zero weight (fresh LoRA B) and an all-zero gradient stay zero and finite."""
    x = torch.randn(4, 32)
    x[1] = 0
    x.requires_grad_()
    low = layer(precision)
    y = low(x)
    assert torch.equal(y[1], torch.zeros(48)) and y.isfinite().all()
    y.backward(torch.zeros_like(y))
    assert torch.equal(x.grad, torch.zeros_like(x)) and torch.equal(low.weight.grad, torch.zeros_like(low.weight))
    nn.init.zeros_(low.weight)
    assert torch.equal(low(x), torch.zeros(4, 48))
    assert torch.equal(low(torch.zeros(4, 32)), torch.zeros(4, 48))


@pytest.mark.parametrize("precision", NAMES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["input", "gradient", "weight"])
def test_fp8_05_a_bad_value_skips_the_update_and_changes_nothing(precision, bad, where):
    """E4M3 (input, weight) has no infinity and E5M2 (gradient) has one; both must reach the guard."""
    low = layer(precision)
    optim = torch.optim.AdamW(low.parameters(), lr=0.1, fused=True)
    x = torch.randn(8, 32)
    low(x.requires_grad_()).sum().backward()
    assert not guarded_step(optim, low.parameters(), 1.0).skipped
    if where == "weight":
        with torch.no_grad():
            low.weight[0, 0] = bad
    weight = low.weight.detach().clone()
    state = {k: v.clone() for k, v in optim.state[low.weight].items()}
    bad_x, grad = torch.randn(8, 32), torch.ones(8, 48)
    (bad_x if where == "input" else grad)[2, 3] = bad if where != "weight" else 1.0
    y = low(bad_x.requires_grad_())
    # d loss / d y of a squared loss carries a non-finite output back into the weights.
    y.backward(grad * (y.detach() if where != "gradient" else 1.0))
    result = guarded_step(optim, low.parameters(), 1.0)
    assert result.skipped and not math.isfinite(result.grad_norm)
    assert torch.equal(low.weight.detach().nan_to_num(7), weight.nan_to_num(7))
    assert all(torch.equal(optim.state[low.weight][k], v) for k, v in state.items())
