"""RL-03: what a reward function returns is checked, by count and by value, before it becomes an advantage."""

from __future__ import annotations

import pytest
import torch

from models.rl.rewards import score_completions

TEXTS = [f"text {i}" for i in range(8)]
ANSWERS = ["1"] * 8


def length_reward(texts, answers):
    return [float(len(text)) for text in texts]


def test_rewards_come_back_in_order():
    rewards_B, valid_B = score_completions(length_reward, ["a", "bbb"], ["", ""])
    assert rewards_B.tolist() == [1.0, 3.0] and rewards_B.dtype == torch.float32
    assert valid_B.tolist() == [True, True]


@pytest.mark.parametrize("count", [1, 7, 9, 0])
def test_rl03_wrong_count_stops_and_names_the_function(count):
    def short_reward(texts, answers):
        return [1.0] * count

    with pytest.raises(ValueError, match=rf"short_reward: got {count} rewards, expected 8"):
        score_completions(short_reward, TEXTS, ANSWERS)


@pytest.mark.parametrize("result", [1.0, "11111111", torch.ones(1)])
def test_rl03_a_single_value_is_not_broadcast(result):
    with pytest.raises(ValueError, match="expected a list of 8"):
        score_completions(lambda texts, answers: result, TEXTS, ANSWERS)


def test_rl03_none_is_not_applicable():
    rewards_B, valid_B = score_completions(lambda texts, answers: [1.0, None, 0.0, 0.0], ["a"] * 4, ["1"] * 4)
    assert valid_B.tolist() == [True, False, True, True]
    assert torch.isfinite(rewards_B).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "1"])
def test_rl03_values_that_are_no_finite_number_are_refused(bad):
    with pytest.raises(ValueError, match="for completion 1, expected a finite number"):
        score_completions(lambda texts, answers: [1.0, bad], ["a", "b"], ["1", "1"])


def test_texts_and_answers_pair_up():
    with pytest.raises(ValueError, match="2 texts and 1 answers"):
        score_completions(length_reward, ["a", "b"], ["1"])
