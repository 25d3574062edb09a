"""Policy losses against the hand-worked clip table, and their gradients at and away from ratio 1."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.rl.policy_losses import ppo_clip, reinforce


def clip_at(ratio: float, advantage: float, low: float = 0.2, high: float = 0.28) -> tuple[float, float, bool]:
    """(value of min(rho A, clip(rho) A), gradient of the loss in lp, clipped) at one token."""
    lp = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    result = ppo_clip(lp, torch.zeros(1, 1, dtype=torch.float64), torch.tensor([[advantage]]), clip_low=low, clip_high=high)
    result.loss_BT.sum().backward()
    return -result.loss_BT.item(), lp.grad.item(), bool(result.clipped_BT.item())


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "clipped"),
    [(0.7, 1.0, 0.7, False), (0.7, -1.0, -0.8, True), (1.3, 1.0, 1.28, True), (1.3, -1.0, -1.3, False), (5.0, -1.0, -5.0, False)],
)
def test_hand_worked_clip(ratio, advantage, value, clipped):
    got, grad, was_clipped = clip_at(ratio, advantage)
    assert got == pytest.approx(value, abs=1e-6)
    assert was_clipped is clipped
    assert grad == pytest.approx(0.0 if clipped else -advantage * ratio, abs=1e-6)


def test_symmetric_clip_differs_from_clip_higher():
    assert clip_at(1.25, 1.0, high=0.28)[2] is False
    assert clip_at(1.25, 1.0, high=0.2) == (pytest.approx(1.2), 0.0, True)


def test_on_policy_gradient_is_reinforce_and_nothing_is_clipped():
    generator = torch.Generator().manual_seed(0)
    lp_BT = torch.randn(3, 5, generator=generator).requires_grad_()
    advantages = torch.randn(3, 1, generator=generator)
    result = ppo_clip(lp_BT, lp_BT.detach(), advantages, clip_low=0.2, clip_high=0.2)
    (grad_clip,) = torch.autograd.grad(result.loss_BT.sum(), lp_BT)
    (grad_reinforce,) = torch.autograd.grad(reinforce(lp_BT, advantages).sum(), lp_BT)
    assert torch.equal(grad_clip, grad_reinforce)
    assert not result.clipped_BT.any()
    assert torch.equal(result.loss_BT.detach(), (-advantages).expand(3, 5))


@settings(max_examples=60, deadline=None)
@given(st.floats(-1.5, 1.5), st.floats(-2, 2))
def test_loose_clip_is_the_importance_weighted_loss(log_ratio, advantage):
    ratio = math.exp(log_ratio)
    value, grad, clipped = clip_at(ratio, advantage, low=0.999, high=1e6)
    assert value == pytest.approx(ratio * advantage, abs=1e-5)
    assert grad == pytest.approx(-ratio * advantage, abs=1e-5)
    assert not clipped


def test_the_loss_is_pessimistic():
    generator = torch.Generator().manual_seed(1)
    lp_BT, advantages = torch.randn(4, 6, generator=generator), torch.randn(4, 1, generator=generator)
    loss_BT = ppo_clip(lp_BT, torch.zeros(4, 6), advantages, clip_low=0.2, clip_high=0.2).loss_BT
    assert (loss_BT >= -advantages * lp_BT.exp() - 1e-6).all()


def test_an_absurd_ratio_stays_finite():
    value, grad, _ = clip_at(math.exp(90), -1.0)
    assert math.isfinite(value) and grad == 0.0


def test_old_logprobs_and_advantages_are_constants():
    lp, old, advantage = (torch.full((1, 1), 0.1, requires_grad=True) for _ in range(3))
    ppo_clip(lp, old, advantage, clip_low=0.2, clip_high=0.2).loss_BT.sum().backward()
    assert lp.grad is not None and old.grad is None and advantage.grad is None


@pytest.mark.parametrize(("low", "high", "name"), [(1.0, 0.2, "clip_low"), (-0.1, 0.2, "clip_low"), (0.2, -0.1, "clip_high")])
def test_impossible_clips_are_refused(low, high, name):
    with pytest.raises(ValueError, match=name):
        ppo_clip(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), clip_low=low, clip_high=high)
