"""Scales that live from step to step: hand-worked histories, the moss bound under the real optimizer, what is saved and restored."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from models.optimizers.adamw import adamw
from models.optimizers.guard import guarded_step
from models.precision import (
    PrecisionLinear,
    apply_precision,
    cast_totals,
    counted_casts,
    follow_optimizer,
    hold_weights,
    precision_state,
    restore_precision_state,
)
from models.precision.formats import E4M3
from models.precision.scales import Casts, DelayedScales, MossScales
from models.precision.state import has_precision_state, remeasure
from tests.bench.precision import moss_run


def model_of(precision: str, features: int = 32, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(features, features, bias=False), nn.Tanh(), nn.Linear(features, features))
    apply_precision(model, precision)
    return model


def step(model: nn.Module, optim: torch.optim.Optimizer, x: torch.Tensor) -> float:
    with hold_weights(model):
        loss = model(x).square().mean()
        loss.backward()
    guarded_step(optim, model.parameters(), math.inf)
    return loss.item()


def test_fp8_02_delayed_scale_saturates_once_and_catches_up():
    """Inputs up to 1 set the scale 1 / 448. Growing 100-fold, all 8 elements are beyond it: counted, not NaN; one step later they fit."""
    scales = DelayedScales(torch.ones(8, 8), Casts())
    ones = torch.ones(1, 8)
    assert torch.equal(scales.round_input(ones).values, torch.full((1, 8), 448.0))
    scales.advance(ones, 0.0, 0.0, 0.0)
    grown = scales.round_input(100 * ones)
    assert grown.scale == pytest.approx(1 / 448) and torch.equal(grown.values, torch.full((1, 8), 448.0))
    assert scales.casts.saturated == 8
    scales.advance(ones, 0.0, 0.0, 0.0)
    caught_up = scales.round_input(100 * ones)
    assert caught_up.scale * caught_up.values[0, 0].item() == pytest.approx(100.0) and scales.casts.saturated == 8
    assert scales.casts.refreshes == 2


def test_delayed_history_forgets_after_its_length_and_one_step_is_one_entry():
    scales = DelayedScales(torch.ones(8, 8), Casts(), history=3)
    for largest in (8.0, 2.0, 1.0):
        for share in (1.0, 0.5):  # two micro-batches of one step
            scales.round_input(torch.tensor([largest * share]))
        scales.advance(torch.ones(1), 0.0, 0.0, 0.0)
    assert scales.history[0].tolist() == [8.0, 2.0, 1.0] and scales.remembered[0] == 8.0
    scales.round_input(torch.tensor([1.0]))
    scales.advance(torch.ones(1), 0.0, 0.0, 0.0)
    assert scales.remembered[0] == 2.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_fp8_05_a_bad_value_is_reported_and_does_not_enter_the_history(bad):
    scales = DelayedScales(torch.ones(8, 8), Casts())
    assert scales.round_input(torch.tensor([1.0, bad])).values.isnan().all()
    assert scales.round_gradient(torch.tensor([1.0, bad])).values.isnan().all()
    assert scales.pending.tolist() == [0, 0, 0]
    assert torch.equal(scales.round_input(torch.zeros(4)).values, torch.zeros(4))


def test_evaluation_leaves_the_history_alone():
    model = model_of("fp8_delayed")
    with torch.no_grad():
        model(torch.randn(4, 32))
    assert all(not tensor.any() for tensor in precision_state(model).values())


def test_moss_without_an_optimizer_measures_every_time():
    """Loaded, edited or sampled from by other code: the scale is always that of the weight as it is."""
    model = model_of("moss")
    first = model[0]
    with torch.no_grad():
        before = model(torch.eye(32))
        first.weight.mul_(1000)
        first.weight.div_(1000)
        first.weight[0, 0] = 50.0
    rounded = first.scales.round_weight(first.weight)
    assert rounded.values[0, 0] * rounded.scale == pytest.approx(50.0, rel=1e-5) and before.isfinite().all()


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10_000), betas=st.sampled_from([(0.9, 0.95), (0.9, 0.999), (0.95, 0.95), (0.0, 0.99), (0.5, 0.3)]),
    weight_decay=st.sampled_from([0.0, 0.1, 5.0]), rates=st.lists(st.sampled_from([0.0, 1e-4, 1e-2, 0.3]), min_size=1, max_size=5),
    kind=st.sampled_from(["dense", "sparse", "growing", "heavy", "constant"]), interval=st.sampled_from([3, 7, 1000]),
)  # fmt: skip
def test_weights_never_leave_the_predicted_range(seed, betas, weight_decay, rates, kind, interval):
    """The invariant, under the real AdamW: max|W| <= bound and no saturated code at any step, for any schedule, decay and gradient."""
    model = nn.Sequential(nn.Linear(16, 16, bias=False))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model[0].weight.copy_(torch.randn(16, 16, generator=generator) * 0.02)
    apply_precision(model, "moss")
    layer, optim = model[0], adamw(model, lr=0.1, betas=betas, weight_decay=weight_decay)
    layer.scales.interval = interval
    follow_optimizer(model, optim)
    for t in range(40):
        optim.param_groups[0]["lr"] = rates[t % len(rates)]
        layer.weight.grad = gradient(kind, t, betas, generator)
        guarded_step(optim, model.parameters(), math.inf)
        assert layer.weight.abs().max().item() <= float(layer.scales.bound)
        rounded = layer.scales.round_weight(layer.weight)
        assert (layer.weight.detach().abs() / rounded.scale <= E4M3.largest).all() and rounded.values.abs().max() <= E4M3.largest


def gradient(kind: str, t: int, betas: tuple[float, float], generator: torch.Generator) -> torch.Tensor:
    dense = torch.randn(16, 16, generator=generator)
    if kind == "sparse":
        return dense * (torch.rand(16, 16, generator=generator) < 0.02)
    if kind == "growing":  # the sequence that reaches kappa
        return torch.full((16, 16), 1e-3 * (betas[1] / max(betas[0], 0.1)) ** min(t, 60))
    return {"dense": dense, "heavy": dense.pow(9), "constant": torch.ones(16, 16)}[kind]


def test_kappa_of_one_would_be_passed_by_growing_gradients():
    """Why the rigorous kappa: AdamW with betas (0.9, 0.999) moves by more than lr a step, 4 times and more."""
    weight = nn.Parameter(torch.zeros(16, 16))
    optim = torch.optim.AdamW([weight], lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0, fused=True)
    moved = 0.0
    for t in range(300):
        before = weight.detach().clone()
        weight.grad = torch.full((16, 16), 1e-14 * (0.999 / 0.9) ** t)
        optim.step()
        moved = max(moved, float((weight.detach() - before).abs().max()) / 1e-3)
    assert 3 < moved < 7.3


@pytest.mark.parametrize("betas", [(0.9, 0.95), (0.9, 0.999)])
def test_training_counts_no_saturation_and_few_refreshes(betas):
    model = model_of("moss")
    optim = adamw(model, lr=0.02, betas=betas, weight_decay=0.1)
    for layer in (model[0], model[2]):
        layer.scales.interval = 20
    follow_optimizer(model, optim)
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(5))
    with counted_casts(model):
        losses = [step(model, optim, x) for _ in range(60)]
    totals = cast_totals(model)
    assert losses[-1] < 0.1 * losses[0] and totals["fp8_saturated"] == 0
    assert totals["fp8_scale_refreshes"] == 2 * (1 + 3), "two layers: at the start, and at steps 20, 40, 60"


def test_a_skipped_update_moves_no_scale():
    model = model_of("moss")
    optim = adamw(model, lr=0.02, betas=(0.9, 0.95), weight_decay=0.1)
    follow_optimizer(model, optim)
    before = precision_state(model)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, math.nan)
    assert guarded_step(optim, model.parameters(), 1.0).skipped
    assert all(torch.equal(before[name], tensor) for name, tensor in precision_state(model).items())


@pytest.mark.parametrize("precision", ["fp8_rowwise", "fp8_blockwise", "mxfp8", "moss", "fp8_delayed"])
def test_fp8_03_saved_and_restored_run_continues_bit_for_bit(precision):
    """Saved after 4 of 9 steps; the same losses, weights and state as unbroken."""
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(6))

    def start() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = model_of(precision)
        return model, adamw(model, lr=0.02, betas=(0.9, 0.999), weight_decay=0.1)

    model, optim = start()
    follow_optimizer(model, optim)
    for _ in range(4):
        step(model, optim, x)
    saved = precision_state(model), copy.deepcopy(model.state_dict()), copy.deepcopy(optim.state_dict())
    losses = [step(model, optim, x * 3) for _ in range(5)]

    again, optim = start()
    again.load_state_dict(saved[1])
    optim.load_state_dict(saved[2])
    restore_precision_state(again, saved[0])
    follow_optimizer(again, optim)
    assert [step(again, optim, x * 3) for _ in range(5)] == losses
    ours, theirs = precision_state(again), precision_state(model)
    assert list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert cast_totals(again) == cast_totals(model)


@pytest.mark.parametrize("precision", ["moss", "fp8_delayed"])
def test_fp8_04_state_does_not_grow(precision):
    model = model_of(precision)
    optim = adamw(model, lr=0.02, betas=(0.9, 0.95), weight_decay=0.0)
    follow_optimizer(model, optim)
    sizes = []
    for _ in range(3):
        for _ in range(5):
            step(model, optim, torch.ones(4, 32))
        sizes.append({name: (tensor.shape, tensor.dtype) for name, tensor in precision_state(model).items()})
    assert sizes[0] == sizes[1] == sizes[2] and list(model.state_dict()) == ["0.weight", "2.weight", "2.bias"]


def test_state_of_other_layers_is_refused_and_stateless_precisions_have_none():
    moss = precision_state(model_of("moss"))
    assert has_precision_state(moss) and "precision/0/bound" in moss
    for precision in ("fp32", "bf16", "fp8_tensorwise"):
        plain = model_of(precision)
        assert precision_state(plain) == {} and cast_totals(plain) == {}
    with pytest.raises(ValueError, match="precision state is for other layers.*0/bound"):
        restore_precision_state(model_of("fp8_delayed"), moss)
    with pytest.raises(ValueError, match="0/bound"):
        restore_precision_state(model_of("moss"), {name: t for name, t in moss.items() if name != "precision/0/bound"})
    with pytest.raises(ValueError, match="differ in shape"):
        restore_precision_state(model_of("moss"), moss | {"precision/0/bound": torch.zeros(2)})


def test_moss_refuses_an_optimizer_it_has_no_bound_for_and_following_twice_is_once():
    model = model_of("moss")
    with pytest.raises(ValueError, match="got optimizer SGD, expected AdamW"):
        follow_optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="no bound"):
        follow_optimizer(model, torch.optim.AdamW(model.parameters(), betas=(0.99, 0.9)))
    optim = adamw(model, lr=0.1, betas=(0.9, 0.95), weight_decay=0.0)
    follow_optimizer(model, optim)
    follow_optimizer(model, optim)
    step(model, optim, torch.ones(4, 32))
    assert int(model[0].scales.steps) == 1


def test_weights_edited_from_outside_are_measured_again_on_request():
    model = model_of("moss")
    follow_optimizer(model, adamw(model, lr=0.1, betas=(0.9, 0.95), weight_decay=0.0))
    with torch.no_grad():
        model[0].weight[3, 3] = 77.0
    assert float(model[0].scales.bound) < 1
    remeasure(model)
    assert float(model[0].scales.bound) == pytest.approx(77.0, rel=1e-5)


def test_frozen_weight_keeps_its_bound():
    model = model_of("moss")
    model[0].weight.requires_grad_(False)
    optim = adamw(model, lr=0.1, betas=(0.9, 0.95), weight_decay=0.1)
    follow_optimizer(model, optim)
    before = float(model[0].scales.bound)
    step(model, optim, torch.ones(4, 32))
    assert float(model[0].scales.bound) == pytest.approx(before, rel=1e-5)
    assert float(model[2].scales.bound) > before


def test_underflows_are_counted_on_request_only():
    """Row maximum 448 x 2**12: of its block, everything at or below 2**-10 x 2**12 = 4 becomes zero; 31 elements of 2, in two products' inputs."""
    layer = PrecisionLinear(nn.Linear(32, 16, bias=False), model_of("mxfp8")[0].recipe)
    nn.init.ones_(layer.weight)
    x = torch.full((1, 32), 2.0)
    x[0, 0] = 448.0 * 2**12
    layer(x)
    assert cast_totals(layer)["fp8_underflowed"] == 0
    with counted_casts(layer):
        layer(x)
    assert cast_totals(layer) == {"fp8_saturated": 0, "fp8_underflowed": 31, "fp8_scale_refreshes": 0}


def test_scales_follow_their_layer_into_a_copy():
    model = model_of("moss")
    copied = copy.deepcopy(model)
    copied[0].scales.measure(copied[0].weight * 10)
    assert isinstance(copied[0].scales, MossScales) and copied[0].scales.casts is copied[0].casts
    assert float(model[0].scales.bound) == 0 and model[0].casts.refreshes == 0


@pytest.mark.slow
def test_no_cast_saturates_in_two_thousand_steps():
    """Weights measured every 500 steps, schedule with warm-up and cosine, betas (0.9, 0.999): none clipped, and the bound stays useful."""
    found = moss_run(2000)
    assert (found["saturated"], found["refreshes"], found["interval"]) == (0, 2 * (1 + 4), 500)
    assert found["last_loss"] < 0.1 * found["first_loss"] and found["largest_slack"] < 256, "256 times too large is still free"
