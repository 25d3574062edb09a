"""Rollouts of the rl stage: problems -> sampled, scored completions with their advantages, and greedy accuracy.

In: prompts of the tokenize stage, a model. Out: Rollout objects. Everything drawn is a function of (seed, step): the prompts of a
step from one endless walk over all of them, the noise of a completion from its place in the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from data.shards import open_mds
from data.tasks import verify
from models.architectures.decoder import Decoder
from models.inference.generate import Completion, generate
from models.rl.advantages import AdvantageFn, has_signal
from models.rl.rewards import RewardFn, score_completions
from stages.config import StageError


@dataclass(frozen=True, slots=True)
class Problem:
    """A prompt with its known answer."""

    tokens: list[int]
    answer: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoding:
    """How completions are drawn."""

    max_new_tokens: int
    eos_ids: list[int]
    batch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """Completions of one step, prompt by prompt, and what became of them."""

    prompts: list[list[int]]
    completions: list[Completion]
    rewards: list[float]
    """0 where the verifier did not apply."""
    scored: list[bool]
    advantages: list[float]
    signal_fraction: float
    """Share of the groups whose rewards differ, so that they move the policy."""


def read_problems(folder: Path, longest_prompt: int) -> tuple[list[Problem], int]:
    """(problems whose prompt fits, number of those whose prompt does not). StageError when none fits."""
    rows = open_mds(folder)
    problems = [Problem(row["tokens"].astype(int).tolist(), row["answer"]) for row in (rows[i] for i in range(len(rows)))]
    fitting = [problem for problem in problems if len(problem.tokens) <= longest_prompt]
    if not fitting:
        raise StageError(
            f"{folder} has {len(problems)} prompts, none of at most {longest_prompt} tokens (the model's context less rl.max_new_tokens); "
            "lower rl.max_new_tokens, or give the prepare stage problems"
        )
    return fitting, len(problems) - len(fitting)


def prompt_numbers(step: int, per_step: int, num_prompts: int, seed: int) -> list[int]:
    """Prompts of 0-based `step`: the next `per_step` of an endless walk, in a fresh order of all prompts in every epoch."""
    places = range(step * per_step, (step + 1) * per_step)
    epochs = {place // num_prompts for place in places}
    orders = {epoch: np.random.default_rng([seed, epoch]).permutation(num_prompts) for epoch in epochs}
    return [int(orders[place // num_prompts][place % num_prompts]) for place in places]


def rollout_seed(seed: int, step: int) -> int:
    """Seed of the noise of one step."""
    return (seed << 32) + step


def verified_rewards(texts: Sequence[str], answers: Sequence[str]) -> list[float]:
    """1.0 for a right final answer, else 0.0."""
    return [verify.reward(text, answer) for text, answer in zip(texts, answers, strict=True)]


def roll_out(
    model: Decoder,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[Problem],
    decoding: Decoding,
    *,
    num_samples: int,
    temperature: float,
    seed: int,
    reward_fn: RewardFn,
    advantage: AdvantageFn,
) -> Rollout:
    """Sample `num_samples` completions of each problem and score them. An unfinished completion is no answer: its reward is 0."""
    groups = generate(
        model,
        [problem.tokens for problem in problems],
        max_new_tokens=decoding.max_new_tokens,
        temperature=temperature,
        eos_ids=decoding.eos_ids,
        seed=seed,
        num_samples=num_samples,
        batch_size=decoding.batch,
    )
    completions = [completion for group in groups for completion in group]
    answers = [problem.answer for problem in problems for _ in range(num_samples)]
    rewards_B, scored_B = score_completions(reward_fn, completion_texts(tokenizer, completions), answers)
    rewards_B = rewards_B * torch.tensor([completion.finished for completion in completions])
    advantages_GS = advantage(rewards_B.view(len(problems), num_samples), scored_B.view(len(problems), num_samples))
    return Rollout(
        prompts=[problem.tokens for problem in problems for _ in range(num_samples)],
        completions=completions,
        rewards=rewards_B.tolist(),
        scored=scored_B.tolist(),
        advantages=advantages_GS.flatten().tolist(),
        signal_fraction=has_signal(advantages_GS).float().mean().item(),
    )


def greedy_accuracy(model: Decoder, tokenizer: PreTrainedTokenizerFast, problems: Sequence[Problem], decoding: Decoding) -> float:
    """Share of the problems whose likeliest completion is finished and right."""
    groups = generate(
        model,
        [problem.tokens for problem in problems],
        max_new_tokens=decoding.max_new_tokens,
        temperature=0.0,
        eos_ids=decoding.eos_ids,
        seed=0,
        batch_size=decoding.batch,
    )
    completions = [group[0] for group in groups]
    rewards = verified_rewards(completion_texts(tokenizer, completions), [problem.answer for problem in problems])
    return sum(reward for reward, completion in zip(rewards, completions, strict=True) if completion.finished) / len(problems)


def completion_texts(tokenizer: PreTrainedTokenizerFast, completions: Sequence[Completion]) -> list[str]:
    """Texts without the end token that closes them; other control tokens stay visible."""
    return [
        tokenizer.decode(completion.tokens[:-1] if completion.finished else completion.tokens, skip_special_tokens=False)
        for completion in completions
    ]
