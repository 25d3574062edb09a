"""The guarded update: clipping by hand, and skips that leave no trace."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from models.optimizers.adamw import adamw
from models.optimizers.guard import guarded_step


def sgd_pair() -> tuple[nn.ParameterList, torch.optim.SGD]:
    params = nn.ParameterList([nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1, 1))])
    params[0].grad = torch.tensor([1.0, 2.0])
    params[1].grad = torch.tensor([[2.0]])
    return params, torch.optim.SGD(params, lr=1.0)


@pytest.mark.parametrize(("clip", "factor"), [(1.5, 0.5), (3.0, 1.0), (math.inf, 1.0)])
def test_norm_over_all_parameters_and_clipping(clip, factor):
    """|(1, 2, 2)| = 3."""
    params, optim = sgd_pair()
    result = guarded_step(optim, params, clip)
    assert result == (3.0, False)
    assert params[0].tolist() == pytest.approx([-factor, -2 * factor]) and params[1].item() == pytest.approx(-2 * factor)
    assert all(p.grad is None for p in params)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_nonfinite_norm_changes_no_bit(bad):
    """FP8-05: one bad element. 3e38 is finite, but its square overflows: the norm is what decides."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optim = adamw(model, lr=0.1, betas=(0.9, 0.95), weight_decay=0.1)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    assert not guarded_step(optim, model.parameters(), 1.0).skipped
    weights = [p.detach().clone() for p in model.parameters()]
    state = [{k: v.clone() for k, v in optim.state[p].items()} for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    model[1].weight.grad[1, 2] = bad
    result = guarded_step(optim, model.parameters(), 1.0)
    assert result.skipped and not math.isfinite(result.grad_norm)
    for p, weight, kept in zip(model.parameters(), weights, state, strict=True):
        assert torch.equal(p, weight) and p.grad is None
        assert all(torch.equal(optim.state[p][k], v) for k, v in kept.items())


def test_the_run_continues_after_a_skip_as_if_it_had_not_been():
    def run(with_bad_step: bool) -> torch.Tensor:
        model = nn.Linear(3, 3, bias=False)
        nn.init.eye_(model.weight)
        optim = adamw(model, lr=0.1, betas=(0.9, 0.95), weight_decay=0.1)
        generator = torch.Generator().manual_seed(1)
        for step in range(4):
            if with_bad_step and step == 2:
                model.weight.grad = torch.full((3, 3), math.nan)
                assert guarded_step(optim, model.parameters(), 1.0).skipped
            model.weight.grad = torch.randn(3, 3, generator=generator)
            guarded_step(optim, model.parameters(), 1.0)
        return model.weight.detach()

    assert torch.equal(run(True), run(False))


def test_parameters_without_gradient_are_passed_over():
    params, optim = sgd_pair()
    params[1].grad = None
    assert guarded_step(optim, params, math.inf).grad_norm == pytest.approx(math.sqrt(5))
    assert params[1].item() == 0.0


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan])
def test_bad_clip_norm_is_refused(clip):
    params, optim = sgd_pair()
    with pytest.raises(ValueError, match="clip_norm"):
        guarded_step(optim, params, clip)
    assert params[0].eq(0).all()


def test_no_gradient_at_all_is_refused():
    params, optim = sgd_pair()
    optim.zero_grad()
    with pytest.raises(ValueError, match="call backward first"):
        guarded_step(optim, params, 1.0)
