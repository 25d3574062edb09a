"""From generated completions to training rows: prompt + completion, padded on the right, with the mask of trained tokens.

In: prompts' and completions' token ids, the sampler's log-probabilities, and which completions are left out of the loss.
Out: a RolloutBatch. Rows are cut to micro-batches by length, so that little is spent on padding; the cut never changes a
gradient beyond rounding, because denominators are global (models/rl/aggregation.py).

Shapes: B rows (completions), T positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutBatch:
    """Rows of one micro-batch, with the same right padding."""

    tokens_BT: Tensor
    """int64: prompt, completion, then 0s that no mask covers."""
    mask_BT: Tensor
    """bool: tokens of the completion, up to and including its end token. Masks come from lengths, never from token ids."""
    sampler_lp_BT: Tensor
    """float32: the sampler's log-probability of each masked token, 0 elsewhere."""
    advantages_B: Tensor
    """float32, one per completion."""


def pad_rollouts(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    logprobs: Sequence[Sequence[float]],
    advantages: Sequence[float],
    *,
    device: torch.device,
) -> RolloutBatch:
    """Rows of unequal length to one right-padded batch on `device`.

    Raises ValueError when counts differ, or a completion has no token or not one log-probability per token.
    """
    if not len(prompts) == len(completions) == len(logprobs) == len(advantages):
        raise ValueError(
            f"pad_rollouts: got {len(prompts)} prompts, {len(completions)} completions, {len(logprobs)} lists of "
            f"log-probabilities and {len(advantages)} advantages, expected as many of each"
        )
    width = max(len(prompt) + len(completion) for prompt, completion in zip(prompts, completions, strict=True))
    tokens_BT = torch.zeros(len(prompts), width, dtype=torch.int64)
    mask_BT = torch.zeros(len(prompts), width, dtype=torch.bool)
    sampler_lp_BT = torch.zeros(len(prompts), width, dtype=torch.float32)
    for i, (prompt, completion, lps) in enumerate(zip(prompts, completions, logprobs, strict=True)):
        if not completion or len(lps) != len(completion) or not prompt:
            raise ValueError(
                f"pad_rollouts: row {i} has {len(prompt)} prompt tokens, {len(completion)} completion tokens and {len(lps)} "
                "log-probabilities, expected at least one of each and one log-probability per completion token"
            )
        start, end = len(prompt), len(prompt) + len(completion)
        tokens_BT[i, :end] = torch.tensor([*prompt, *completion])
        mask_BT[i, start:end] = True
        sampler_lp_BT[i, start:end] = torch.tensor(lps, dtype=torch.float32)
    return RolloutBatch(
        tokens_BT=tokens_BT.to(device),
        mask_BT=mask_BT.to(device),
        sampler_lp_BT=sampler_lp_BT.to(device),
        advantages_B=torch.tensor(advantages, dtype=torch.float32, device=device),
    )


def micro_batches(lengths: Sequence[int], rows: int) -> list[list[int]]:
    """Row numbers in micro-batches of at most `rows`, longest first, equal lengths in the order given.

    Longest first, so that a step that does not fit in memory fails at once. Raises ValueError for rows below 1.
    """
    if rows < 1:
        raise ValueError(f"rows: got {rows}, expected at least 1 row in a micro-batch")
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    return [order[start : start + rows] for start in range(0, len(order), rows)]
