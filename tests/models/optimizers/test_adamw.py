"""Parameter groups and AdamW against hand-worked updates."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from models.optimizers.adamw import adamw, param_groups


class Tied(nn.Module):
    """Embedding tied to a head, a norm, a biased layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.norm = nn.RMSNorm(4)
        self.mid = nn.Linear(4, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight


def test_matrices_decay_and_vectors_do_not():
    model = Tied()
    decayed, plain = param_groups(model.parameters(), 0.1)
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert [id(p) for p in decayed["params"]] == [id(model.embed.weight), id(model.mid.weight)]
    assert [id(p) for p in plain["params"]] == [id(model.norm.weight), id(model.mid.bias)]


def test_frozen_parameters_and_empty_groups_are_left_out():
    model = Tied().requires_grad_(False)
    model.mid.bias.requires_grad_(True)
    (group,) = param_groups(model.parameters(), 0.1)
    assert len(group["params"]) == 1 and group["weight_decay"] == 0.0
    with pytest.raises(ValueError, match="without trainable parameters"):
        param_groups(model.requires_grad_(False).parameters(), 0.1)


@pytest.mark.parametrize("bad", [-0.1, float("nan")])
def test_negative_decay_is_refused(bad):
    with pytest.raises(ValueError, match="expected a number >= 0"):
        param_groups(Tied().parameters(), bad)


def test_two_updates_by_hand():
    """w 1, g 2 then -1, lr 0.1, betas (0.5, 0.75), decay 0.1.

    Step 1: m/(1-b1) = 2, v/(1-b2) = 4, so w = 1 (1 - 0.01) - 0.1 = 0.89.
    Step 2: m = 0.5 * 1 - 0.5 = 0, so only decay acts: 0.89 * 0.99 = 0.8811.
    """
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optim = adamw(model, lr=0.1, betas=(0.5, 0.75), weight_decay=0.1, eps=0.0)
    for grad, expected in ((2.0, 0.89), (-1.0, 0.8811)):
        model.weight.grad = torch.full((1, 1), grad)
        optim.step()
        assert model.weight.item() == pytest.approx(expected, abs=1e-6)


def test_fused_equals_the_plain_implementation():
    torch.manual_seed(0)
    fused_model, plain_model = nn.Linear(7, 5), nn.Linear(7, 5)
    plain_model.load_state_dict(fused_model.state_dict())
    fused = adamw(fused_model, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    plain = torch.optim.AdamW(param_groups(plain_model.parameters(), 0.1), lr=0.01, betas=(0.9, 0.95), eps=1e-8, foreach=False)
    for _ in range(20):
        for a, b in zip(fused_model.parameters(), plain_model.parameters(), strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        fused.step()
        plain.step()
    for a, b in zip(fused_model.parameters(), plain_model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
