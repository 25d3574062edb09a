"""Rollouts: which prompts a step takes, what is scored, and that an unfinished completion earns nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from data.chat import CHAT_TEMPLATE
from data.shards import write_mds
from data.tokenizer import END_OF_TEXT, TURN_END, control_ids, load_tokenizer, save_tokenizer, train_bpe
from models.inference.generate import Completion
from models.rl.advantages import grpo_advantage
from models.rl.rewards import RewardFn
from stages.config import StageError
from stages.rollouts import (
    Decoding,
    Problem,
    Rollout,
    completion_texts,
    greedy_accuracy,
    prompt_numbers,
    read_problems,
    roll_out,
    rollout_seed,
    verified_rewards,
)
from tests.models.toy import toy_model

PROBLEMS = [Problem([10, 11, 12], "4"), Problem([13], "5"), Problem([14, 15], "6")]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder, train_bpe(["case 1 #### 8"] * 3, 266, 2), CHAT_TEMPLATE)
    return load_tokenizer(folder)


DECODING = Decoding(max_new_tokens=6, eos_ids=list(range(12)), batch=8)


def rollout(tokenizer: PreTrainedTokenizerFast, reward_fn: RewardFn) -> Rollout:
    return roll_out(
        toy_model(), tokenizer, PROBLEMS, DECODING, num_samples=4, temperature=1.0, seed=0, reward_fn=reward_fn, advantage=grpo_advantage
    )


def every_text_right(texts, answers):
    return [1.0] * len(texts)


@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 5))
def test_ckpt05_every_epoch_visits_every_prompt_once_in_its_own_order(num_prompts, per_step, seed):
    walk = [i for step in range(-(-3 * num_prompts // per_step)) for i in prompt_numbers(step, per_step, num_prompts, seed)]
    epochs = [walk[e * num_prompts : (e + 1) * num_prompts] for e in range(3)]
    assert all(sorted(epoch) == list(range(num_prompts)) for epoch in epochs)
    if num_prompts >= 12:
        assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_steps_and_seeds_have_their_own_noise():
    assert len({rollout_seed(seed, step) for seed in range(5) for step in range(1000)}) == 5000


def test_a_rollout_lists_completions_prompt_by_prompt(tokenizer):
    seen: list[tuple] = []

    def remember(texts, answers):
        seen.append((list(texts), list(answers)))
        return [float(i % 2) for i in range(len(texts))]

    got = rollout(tokenizer, remember)
    assert got.prompts == [p.tokens for p in PROBLEMS for _ in range(4)]
    [(texts, answers)] = seen
    assert answers == ["4"] * 4 + ["5"] * 4 + ["6"] * 4
    assert texts == completion_texts(tokenizer, got.completions)
    assert got.rewards == [float(i % 2) * c.finished for i, c in enumerate(got.completions)]
    rewards_GS = torch.tensor(got.rewards).view(3, 4)
    torch.testing.assert_close(torch.tensor(got.advantages).view(3, 4), grpo_advantage(rewards_GS))


def test_an_unfinished_completion_is_no_answer(tokenizer):
    got = rollout(tokenizer, every_text_right)
    finished = [completion.finished for completion in got.completions]
    assert {True, False} == set(finished)
    assert got.rewards == [float(done) for done in finished]


def test_rl03_a_completion_without_a_verdict_has_no_advantage_and_no_part_in_its_group(tokenizer):
    got = rollout(tokenizer, lambda texts, answers: [None, *[1.0] * (len(texts) - 1)])
    assert got.scored == [False, *[True] * 11] and got.advantages[0] == 0


def test_rl03_a_reward_function_with_a_wrong_count_stops_the_rollout(tokenizer):
    def one_for_all(texts, answers):
        return [1.0]

    with pytest.raises(ValueError, match="one_for_all: got 1 rewards, expected 12"):
        rollout(tokenizer, one_for_all)


def test_groups_without_a_difference_have_no_signal(tokenizer):
    never = rollout(tokenizer, lambda texts, answers: [0.0] * len(texts))
    assert never.signal_fraction == 0 and never.advantages == [0.0] * 12
    mixed = rollout(tokenizer, every_text_right)
    rewards_GS = torch.tensor(mixed.rewards).view(3, 4)
    assert mixed.signal_fraction == pytest.approx((rewards_GS.amin(1) != rewards_GS.amax(1)).float().mean().item())


def test_texts_end_before_the_end_token_and_keep_other_control_tokens(tokenizer):
    ids, right = control_ids(tokenizer), tokenizer.encode("#### 8", add_special_tokens=False)
    made = [
        Completion(tokens=[*right, ids[TURN_END]], logprobs=[], finished=True),
        Completion(tokens=right, logprobs=[], finished=False),
        Completion(tokens=[ids[END_OF_TEXT], *right, ids[TURN_END]], logprobs=[], finished=True),
    ]
    texts = completion_texts(tokenizer, made)
    assert texts == ["#### 8", "#### 8", END_OF_TEXT + "#### 8"]
    assert verified_rewards(texts[:2], ["8", "9"]) == [1.0, 0.0]


def test_greedy_accuracy_needs_a_finished_right_answer(tokenizer):
    assert greedy_accuracy(toy_model(), tokenizer, PROBLEMS, DECODING) == 0


def test_problems_too_long_are_counted_or_refused(tmp_path: Path):
    rows = [{"tokens": np.arange(n, dtype=np.uint16), "answer": str(n)} for n in (3, 9, 5)]
    write_mds(tmp_path / "train", {"tokens": "ndarray:uint16", "answer": "str"}, rows, 1 << 20)
    problems, too_long = read_problems(tmp_path / "train", 5)
    assert problems == [Problem([0, 1, 2], "3"), Problem([0, 1, 2, 3, 4], "5")] and too_long == 1
    with pytest.raises(StageError, match="3 prompts, none of at most 2 tokens"):
        read_problems(tmp_path / "train", 2)
