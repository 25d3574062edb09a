"""Rows of a rollout: where prompt, completion and padding stand, and how rows are cut into micro-batches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.rl.rollout import micro_batches, pad_rollouts

CPU = torch.device("cpu")


def test_rows_are_right_padded_and_masked_by_length():
    batch = pad_rollouts([[5, 6, 7], [8]], [[1], [0, 0, 2]], [[-0.1], [-0.2, -0.3, -0.4]], [1.0, -1.0], device=CPU)
    assert batch.tokens_BT.tolist() == [[5, 6, 7, 1], [8, 0, 0, 2]]
    assert batch.mask_BT.tolist() == [[False, False, False, True], [False, True, True, True]]
    torch.testing.assert_close(batch.sampler_lp_BT, torch.tensor([[0, 0, 0, -0.1], [0, -0.2, -0.3, -0.4]]))
    assert batch.advantages_B.tolist() == [1.0, -1.0]


def test_rl06_the_mask_covers_the_end_token_whatever_its_id():
    """Pad id, end id and ordinary zeros are all 0 here: only lengths tell them apart."""
    batch = pad_rollouts([[0, 1], [1]], [[3, 0], [0]], [[-1.0, -1.0], [-1.0]], [1.0, 1.0], device=CPU)
    assert batch.tokens_BT.tolist() == [[0, 1, 3, 0], [1, 0, 0, 0]]
    assert batch.mask_BT.tolist() == [[False, False, True, True], [False, True, False, False]]


@pytest.mark.parametrize(
    ("prompts", "completions", "logprobs", "advantages", "message"),
    [
        ([[1]], [[]], [[]], [0.0], "0 completion tokens"),
        ([[1]], [[2, 3]], [[-1.0]], [0.0], "1 log-probabilities"),
        ([[]], [[2]], [[-1.0]], [0.0], "0 prompt tokens"),
        ([[1]], [[2]], [[-1.0]], [0.0, 1.0], "2 advantages"),
    ],
)
def test_rows_that_do_not_fit_together_are_refused(prompts, completions, logprobs, advantages, message):
    with pytest.raises(ValueError, match=message):
        pad_rollouts(prompts, completions, logprobs, advantages, device=CPU)


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 8))
def test_micro_batches_hold_every_row_once_longest_first(lengths, rows):
    cuts = micro_batches(lengths, rows)
    flat = [i for cut in cuts for i in cut]
    assert sorted(flat) == list(range(len(lengths)))
    assert all(1 <= len(cut) <= rows for cut in cuts)
    assert [lengths[i] for i in flat] == sorted(lengths, reverse=True)
    assert cuts == micro_batches(lengths, rows)


def test_micro_batches_of_nothing_and_of_no_rows():
    assert micro_batches([], 4) == []
    with pytest.raises(ValueError, match="rows"):
        micro_batches([1], 0)
