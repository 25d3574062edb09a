"""Aggregations against the hand-worked table; RL-04, RL-05, LOSS-01, LOSS-04: denominators are global and count the mask."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.rl.aggregation import AGGREGATIONS, aggregation_fn, count_totals


def lengths_to_mask(lengths: list[int], width: int) -> torch.Tensor:
    return torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]


def value_and_grad(name: str, terms_BT: torch.Tensor, mask_BT: torch.Tensor, max_len: int, cut: list[int] | None = None):
    """Loss and gradient of a step, with its rows cut into micro-batches of the sizes in `cut`."""
    terms_BT = terms_BT.clone().requires_grad_()
    totals = count_totals(mask_BT, max_len)
    parts = zip(terms_BT.split(cut or [len(terms_BT)]), mask_BT.split(cut or [len(terms_BT)]), strict=True)
    loss = sum(AGGREGATIONS[name](terms, mask, totals) for terms, mask in parts)
    loss.backward()
    return loss.detach(), terms_BT.grad


@pytest.mark.parametrize(
    ("name", "first", "second", "value"),
    [
        ("seq_mean_token_mean", 0.25, -1 / 12, 0.0),
        ("token_mean", 0.125, -0.125, 0.5),
        ("seq_sum_const", 0.0625, -0.0625, 0.25),
        ("seq_mean_token_sum", 0.5, -0.5, 2.0),
    ],
)
def test_rl05_hand_worked_table(name, first, second, value):
    """A short good answer (A=+1, 2 tokens) and a long bad one (A=-1, 6 tokens) at ratio 1."""
    advantages = torch.tensor([[1.0], [-1.0]])
    mask_BT = lengths_to_mask([2, 6], 8)
    loss, grad_BT = value_and_grad(name, -advantages.expand(2, 8), mask_BT, max_len=8)
    assert loss.item() == pytest.approx(value, abs=1e-6)
    coefficients_BT = grad_BT * advantages
    torch.testing.assert_close(coefficients_BT[0, :2], torch.full((2,), first))
    torch.testing.assert_close(coefficients_BT[1, :6], torch.full((6,), second))
    assert torch.equal(coefficients_BT[~mask_BT], torch.zeros(8))


@pytest.mark.parametrize("name", sorted(AGGREGATIONS))
def test_rl05_padding_width_does_not_matter(name):
    generator = torch.Generator().manual_seed(0)
    terms_BT = torch.randn(3, 64, generator=generator)
    narrow = value_and_grad(name, terms_BT[:, :16], lengths_to_mask([16, 4, 9], 16), max_len=64)
    wide = value_and_grad(name, terms_BT, lengths_to_mask([16, 4, 9], 64), max_len=64)
    torch.testing.assert_close(narrow[0], wide[0], atol=1e-6, rtol=0)
    assert torch.equal(narrow[1], wide[1][:, :16])


@pytest.mark.parametrize("name", sorted(AGGREGATIONS))
@pytest.mark.parametrize("cut", [[5], [1, 4], [2, 2, 1], [1] * 5])
def test_loss01_loss04_micro_batches_add_up_to_the_step(name, cut):
    generator = torch.Generator().manual_seed(1)
    terms_BT, mask_BT = torch.randn(5, 10, generator=generator), lengths_to_mask([1, 10, 0, 7, 3], 10)
    whole, pieces = value_and_grad(name, terms_BT, mask_BT, 10), value_and_grad(name, terms_BT, mask_BT, 10, cut)
    torch.testing.assert_close(whole[0], pieces[0], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(whole[1], pieces[1], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", sorted(AGGREGATIONS))
def test_rl04_a_masked_completion_leaves_the_divisor_too(name):
    """Completions of 4 and 8 tokens, the second truncated and masked: the result is that of the first one alone."""
    terms_BT = torch.randn(2, 8, generator=torch.Generator().manual_seed(2))
    both = value_and_grad(name, terms_BT, lengths_to_mask([4, 0], 8), max_len=8)
    alone = value_and_grad(name, terms_BT[:1], lengths_to_mask([4], 8), max_len=8)
    assert torch.equal(both[0], alone[0])
    assert torch.equal(both[1][:1], alone[1])
    assert count_totals(lengths_to_mask([4, 0], 8), 8).sequences == 1
    assert count_totals(lengths_to_mask([4, 0], 8), 8).tokens == 4


@pytest.mark.parametrize("name", sorted(AGGREGATIONS))
def test_rl04_all_masked_is_zero_not_nan(name):
    loss, grad_BT = value_and_grad(name, torch.randn(2, 8), torch.zeros(2, 8, dtype=torch.bool), max_len=8)
    assert loss.item() == 0.0
    assert torch.equal(grad_BT, torch.zeros(2, 8))


@pytest.mark.parametrize("name", sorted(AGGREGATIONS))
def test_garbage_outside_the_mask_never_counts(name):
    mask_BT = lengths_to_mask([2, 3], 4)
    terms_BT = torch.where(mask_BT, 1.0, float("nan"))
    loss, grad_BT = value_and_grad(name, terms_BT, mask_BT, max_len=4)
    assert torch.isfinite(loss) and torch.isfinite(grad_BT).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.floats(-3, 3, width=32))
def test_a_constant_term_averages_to_itself(lengths, constant):
    mask_BT = lengths_to_mask(lengths, 6)
    terms_BT = torch.full((len(lengths), 6), constant)
    for name in ("token_mean", "seq_mean_token_mean"):
        assert value_and_grad(name, terms_BT, mask_BT, 6)[0].item() == pytest.approx(constant, abs=1e-5)


def test_refusals():
    with pytest.raises(ValueError, match="token_mean"):
        aggregation_fn("mean")
    with pytest.raises(ValueError, match="max_len"):
        count_totals(torch.ones(1, 1), 0)
    with pytest.raises(ValueError, match="as the mask"):
        AGGREGATIONS["token_mean"](torch.ones(2, 1), torch.ones(2, 4), count_totals(torch.ones(2, 4), 4))
