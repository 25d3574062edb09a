"""Group advantages against hand-worked values, field cases RL-01 and RL-02, and properties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.rl.advantages import (
    ADVANTAGES,
    advantage_fn,
    centred_advantage,
    group_advantage,
    grpo_advantage,
    has_signal,
    leave_one_out_advantage,
)

rewards_groups = st.integers(2, 9).flatmap(
    lambda size: st.lists(
        st.lists(st.floats(-4, 4, width=32, allow_subnormal=False), min_size=size, max_size=size), min_size=1, max_size=4
    )
)


@pytest.mark.parametrize(
    ("rewards", "ddof0", "ddof1", "dr", "rloo"),
    [
        ([1, 0, 0, 0], [1.7321, *[-0.57735] * 3], [1.5, -0.5, -0.5, -0.5], [0.75, *[-0.25] * 3], [1, *[-1 / 3] * 3]),
        ([1, 1, 0, 0], [1, 1, -1, -1], [0.8660, 0.8660, -0.8660, -0.8660], [0.5, 0.5, -0.5, -0.5], [2 / 3, 2 / 3, -2 / 3, -2 / 3]),
    ],
)
def test_hand_worked(rewards, ddof0, ddof1, dr, rloo):
    rewards_GS = torch.tensor([rewards], dtype=torch.float32)
    for got, want in (
        (group_advantage(rewards_GS, ddof=0, eps=0.0), ddof0),
        (group_advantage(rewards_GS, ddof=1, eps=0.0), ddof1),
        (centred_advantage(rewards_GS), dr),
        (leave_one_out_advantage(rewards_GS), rloo),
    ):
        torch.testing.assert_close(got, torch.tensor([want], dtype=torch.float32), atol=5e-5, rtol=0)


def test_eps_is_added_to_the_standard_deviation():
    got = group_advantage(torch.tensor([[1.0, 0.0]]), ddof=0, eps=0.5)
    torch.testing.assert_close(got, torch.tensor([[0.5, -0.5]]))


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_rl01_group_of_one_is_refused(name):
    with pytest.raises(ValueError, match="at least 2 completions"):
        ADVANTAGES[name](torch.tensor([[1.0], [0.0]]), None)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_rl01_group_with_one_counted_member_is_zero(name):
    rewards_GS = torch.tensor([[1.0, float("nan"), 0.0], [1.0, 0.0, 0.0]])
    valid_GS = torch.tensor([[True, False, False], [True, True, True]])
    got = ADVANTAGES[name](rewards_GS, valid_GS)
    assert torch.equal(got[0], torch.zeros(3))
    assert got[1].abs().min() > 0


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@pytest.mark.parametrize("value", [0.35, 0.1, 1.0, 0.0, -3.7e8, 1e-20])
def test_rl02_equal_rewards_give_exactly_zero(name, value):
    rewards_GS = torch.full((3, 8), value)
    assert torch.equal(ADVANTAGES[name](rewards_GS, None), torch.zeros(3, 8))


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_rl02_rounding_residue_of_a_summed_reward_is_no_spread(name):
    same, off_by_an_ulp = torch.tensor(0.35), torch.nextafter(torch.tensor(0.35), torch.tensor(1.0))
    rewards_GS = torch.stack([same, off_by_an_ulp, same, off_by_an_ulp])[None]
    assert rewards_GS[0, 0] != rewards_GS[0, 1]
    assert torch.equal(ADVANTAGES[name](rewards_GS, None), torch.zeros(1, 4))


def test_rl02_seven_equal_and_one_apart_stay_within_the_bound():
    rewards_GS = torch.tensor([[*[0.35] * 7, 0.95]])
    sample = group_advantage(rewards_GS, ddof=1, eps=0.0)
    population = group_advantage(rewards_GS, ddof=0, eps=0.0)
    assert sample[0, 7].item() == pytest.approx(7 / math.sqrt(8), rel=1e-6)
    assert population[0, 7].item() == pytest.approx(math.sqrt(7), rel=1e-6)
    assert leave_one_out_advantage(rewards_GS)[0, 7].item() == pytest.approx(0.6, rel=1e-6)
    assert leave_one_out_advantage(rewards_GS)[0, 0].item() == pytest.approx(-0.6 / 7, rel=1e-6)


def test_unscorable_members_are_left_out_of_the_moments():
    rewards_GS = torch.tensor([[1.0, 0.0, 0.0, 0.0, float("nan")]])
    valid_GS = torch.tensor([[True, True, True, True, False]])
    got = group_advantage(rewards_GS, valid_GS, ddof=1, eps=0.0)
    torch.testing.assert_close(got, torch.tensor([[1.5, -0.5, -0.5, -0.5, 0.0]]))
    torch.testing.assert_close(leave_one_out_advantage(rewards_GS, valid_GS), torch.tensor([[1, -1 / 3, -1 / 3, -1 / 3, 0]]))


@settings(max_examples=60, deadline=None)
@given(rewards_groups)
def test_properties(rows):
    rewards_GS = torch.tensor(rows, dtype=torch.float64)
    size = rewards_GS.shape[1]
    grpo = group_advantage(rewards_GS, ddof=1, eps=0.0)
    assert torch.isfinite(grpo).all()
    assert grpo.abs().max() <= (size - 1) / math.sqrt(size) + 1e-5
    assert group_advantage(rewards_GS, ddof=0, eps=0.0).abs().max() <= math.sqrt(size - 1) + 1e-5
    assert grpo.sum(dim=1).abs().max() < 1e-4
    torch.testing.assert_close(leave_one_out_advantage(rewards_GS), centred_advantage(rewards_GS) * size / (size - 1))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=8), st.integers(-3, 3), st.sampled_from([0.25, 0.5, 2.0, 8.0]))
def test_shift_changes_nothing_and_scale_changes_only_unscaled_ones(rewards, shift, scale):
    rewards_GS = torch.tensor([rewards], dtype=torch.float32)
    for fn in ADVANTAGES.values():
        torch.testing.assert_close(fn(rewards_GS + shift, None), fn(rewards_GS, None))
    torch.testing.assert_close(group_advantage(rewards_GS * scale, ddof=1, eps=0.0), group_advantage(rewards_GS, ddof=1, eps=0.0))
    torch.testing.assert_close(centred_advantage(rewards_GS * scale), centred_advantage(rewards_GS) * scale)


def test_refusals_name_what_is_wrong():
    with pytest.raises(ValueError, match="groups, samples"):
        grpo_advantage(torch.ones(4))
    with pytest.raises(ValueError, match="NaN or infinite"):
        grpo_advantage(torch.tensor([[1.0, float("nan")]]))
    with pytest.raises(ValueError, match="ddof"):
        group_advantage(torch.ones(1, 2), ddof=2, eps=0.0)
    with pytest.raises(ValueError, match="as the rewards"):
        grpo_advantage(torch.ones(1, 2), torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"'dr_grpo', 'grpo', 'rloo'"):
        advantage_fn("ppo")


def test_has_signal():
    assert has_signal(torch.tensor([[0.0, 0.0], [0.5, -0.5]])).tolist() == [False, True]
