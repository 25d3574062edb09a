"""Scoring completions: calls a reward function and checks what came back before it can reach an advantage.

In: a reward function, completions' texts and their reference answers. Out: rewards and which of them count, both 1-D.
Broadcasting is what makes a wrong reward function silent: one value for eight completions has a valid shape almost everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

RewardFn = Callable[[Sequence[str], Sequence[str]], Sequence[float | None]]


def score_completions(reward_fn: RewardFn, texts: Sequence[str], answers: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Call `reward_fn(texts, answers)` and return (rewards_B float32, valid_B bool).

    The function returns one number per text; None means that it does not apply to that text, which is then not valid (reward
    0). Raises ValueError, naming the function, for a result that is no sequence, a wrong count, or a NaN, infinite or
    non-numeric value.
    """
    if len(texts) != len(answers):
        raise ValueError(f"score_completions: got {len(texts)} texts and {len(answers)} answers, expected as many of each")
    name = getattr(reward_fn, "__qualname__", type(reward_fn).__name__)
    values = reward_fn(texts, answers)
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise ValueError(f"reward function {name}: got {type(values).__name__}, expected a list of {len(texts)} numbers or None")
    if len(values) != len(texts):
        raise ValueError(f"reward function {name}: got {len(values)} rewards, expected {len(texts)}, one per completion")
    for i, value in enumerate(values):
        if value is not None and not (isinstance(value, (int, float)) and math.isfinite(value)):
            raise ValueError(
                f"reward function {name}: got {value!r} for completion {i}, expected a finite number, "
                "or None for a completion it does not apply to"
            )
    rewards_B = torch.tensor([0.0 if value is None else float(value) for value in values], dtype=torch.float32)
    return rewards_B, torch.tensor([value is not None for value in values], dtype=torch.bool)
