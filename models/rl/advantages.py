"""Group advantages: rewards of several completions of one prompt -> how much better each did than its group.

In: rewards_GS (G prompts, S completions each) and which of them count. Out: advantages_GS, float32, constant inputs to the loss.
Members of the GRPO family differ in the baseline and the scale:

    grpo     (r - mean) / (std + eps)      Shao et al. 2024, arXiv 2402.03300; the divisor's ddof is 1 here (the paper names none)
    dr_grpo  r - mean                      Liu et al. 2025, arXiv 2503.20783
    rloo     r - mean of the others        Ahmadian et al. 2024, arXiv 2402.14740; equals S / (S - 1) times dr_grpo

Everything is computed in float64 from differences to the smallest reward, so that a group of equal rewards is exactly 0: in
float32 the mean of eight times 0.35 is not 0.35, and dividing that residue by a standard deviation made of the same residue
turns nothing into an advantage near the bound. For the same reason rewards that agree to one part in a million are equal.

Shapes: G groups (prompts), S samples of a group.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

EQUAL_WITHIN = 1e-6
GRPO_EPS = 1e-6

AdvantageFn = Callable[[Tensor, Tensor | None], Tensor]


def group_advantage(rewards_GS: Tensor, valid_GS: Tensor | None = None, *, ddof: int, eps: float) -> Tensor:
    """GRPO's outcome advantage: A = (r - mean_S r) / (std_S r + eps). Returns (G, S) float32, zero mean over a group.

    `valid_GS` (bool) marks the rewards that count; the others have advantage 0 and stay out of mean and standard deviation.
    ddof=1 divides the squared deviations by n - 1, ddof=0 by n. A group with fewer than two counted rewards, or with equal
    ones, is 0 throughout. |A| never exceeds (n - 1) / sqrt(n) for ddof=1 and sqrt(n - 1) for ddof=0.
    Raises ValueError for groups of one completion, non-finite counted rewards, or an unknown ddof.
    """
    if ddof not in (0, 1):
        raise ValueError(f"ddof: got {ddof!r}, expected 0 (population) or 1 (sample)")
    if not eps >= 0:
        raise ValueError(f"eps: got {eps!r}, expected a number of at least 0")
    centred_GS, valid_GS, count_G = _centre(rewards_GS, valid_GS)
    variance_G = centred_GS.square().sum(dim=1) / (count_G - ddof).clamp(min=1)
    std_G = variance_G.sqrt()
    scale_G = torch.where(std_G > 0, 1.0 / (std_G + eps), 0.0)
    return (centred_GS * scale_G[:, None]).float()


def centred_advantage(rewards_GS: Tensor, valid_GS: Tensor | None = None) -> Tensor:
    """Dr. GRPO's advantage: A = r - mean_S r, not divided by the standard deviation. Returns (G, S) float32.

    Same treatment of invalid rewards, equal groups and errors as `group_advantage`.
    """
    centred_GS, _, _ = _centre(rewards_GS, valid_GS)
    return centred_GS.float()


def leave_one_out_advantage(rewards_GS: Tensor, valid_GS: Tensor | None = None) -> Tensor:
    """RLOO's advantage: A_i = r_i - mean of the group's other rewards. Returns (G, S) float32.

    Computed as n / (n - 1) times the centred reward, which is the same number without S sums.
    Same treatment of invalid rewards, equal groups and errors as `group_advantage`.
    """
    centred_GS, _, count_G = _centre(rewards_GS, valid_GS)
    return (centred_GS * (count_G / (count_G - 1).clamp(min=1))[:, None]).float()


def grpo_advantage(rewards_GS: Tensor, valid_GS: Tensor | None = None) -> Tensor:
    """`group_advantage` with the sample standard deviation (ddof=1) and eps=1e-6."""
    return group_advantage(rewards_GS, valid_GS, ddof=1, eps=GRPO_EPS)


ADVANTAGES: dict[str, AdvantageFn] = {
    "grpo": grpo_advantage,
    "dr_grpo": centred_advantage,
    "rloo": leave_one_out_advantage,
}


def advantage_fn(name: str) -> AdvantageFn:
    """The advantage called `name`. Raises ValueError listing the names."""
    if name not in ADVANTAGES:
        raise ValueError(f"advantage: got {name!r}, expected one of {sorted(ADVANTAGES)}")
    return ADVANTAGES[name]


def has_signal(advantages_GS: Tensor) -> Tensor:
    """(G,) bool: whether any completion of the group has a non-zero advantage, so that the group moves the policy."""
    return (advantages_GS != 0).any(dim=1)


def _centre(rewards_GS: Tensor, valid_GS: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Checked float64 (centred rewards with 0 where invalid or where the group is equal, validity, valid count per group)."""
    if rewards_GS.dim() != 2:
        raise ValueError(f"rewards: got shape {tuple(rewards_GS.shape)}, expected (groups, samples)")
    if rewards_GS.shape[1] < 2:
        raise ValueError(
            f"rewards: got groups of {rewards_GS.shape[1]}, expected at least 2 completions of a prompt: "
            "a group of one has no baseline; raise samples_per_prompt"
        )
    if valid_GS is None:
        valid_GS = torch.ones_like(rewards_GS, dtype=torch.bool)
    if valid_GS.shape != rewards_GS.shape:
        raise ValueError(f"valid: got shape {tuple(valid_GS.shape)}, expected {tuple(rewards_GS.shape)} as the rewards")
    if not torch.isfinite(rewards_GS[valid_GS]).all():
        raise ValueError("rewards: got a NaN or infinite value, expected finite rewards; mark what cannot be scored as not valid")
    exact_GS = torch.where(valid_GS, rewards_GS, 0).double()
    low_G = torch.where(valid_GS, exact_GS, torch.inf).amin(dim=1)
    high_G = torch.where(valid_GS, exact_GS, -torch.inf).amax(dim=1)
    count_G = valid_GS.sum(dim=1).double()
    magnitude_G = torch.maximum(low_G.abs(), high_G.abs())
    spread = (count_G >= 2) & (high_G - low_G > EQUAL_WITHIN * magnitude_G)
    used_GS = valid_GS & spread[:, None]
    above_GS = torch.where(used_GS, exact_GS - low_G[:, None], 0.0)
    mean_G = above_GS.sum(dim=1) / count_G.clamp(min=1)
    return torch.where(used_GS, above_GS - mean_G[:, None], 0.0), valid_GS, count_G
