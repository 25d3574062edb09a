"""Policy-gradient losses per token: log-probabilities and advantages -> loss terms to minimise. They never aggregate.

    reinforce  -A * lp                                        Williams 1992
    ppo_clip   max(-A * rho, -A * clip(rho, 1 - lo, 1 + hi))  Schulman et al. 2017, arXiv 1707.06347; separate lo and hi as in
                                                              DAPO, arXiv 2503.14476; rho = exp(lp - lp_old)

At the first update after a rollout lp equals lp_old: the ppo_clip loss then has the value -A (so a batch of centred advantages
sums to about 0) and the gradient of reinforce. A loss of 0 with a clip fraction of 0 is right there, the gradient is not 0.

Shapes: B completions, T positions; advantages are (B, 1) or (B, T).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0


class PolicyLoss(NamedTuple):
    """Loss terms and which of them the clip cut off from the gradient."""

    loss_BT: Tensor
    clipped_BT: Tensor


def reinforce(lp_BT: Tensor, advantages: Tensor) -> Tensor:
    """-A * lp per token, (B, T). Williams 1992, REINFORCE."""
    return -advantages * lp_BT


def ppo_clip(lp_BT: Tensor, lp_old_BT: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float) -> PolicyLoss:
    """max(-A * rho, -A * clip(rho, 1 - clip_low, 1 + clip_high)) per token, (B, T), with rho = exp(lp - lp_old).

    lp_old and the advantages are constants. The log ratio is held within +-20, so that one absurd token is a large loss
    rather than an infinite one. `clipped_BT` is True where the token no longer has a gradient: rho above 1 + clip_high with
    A > 0, or below 1 - clip_low with A < 0.
    Raises ValueError for clip_low outside [0, 1) or clip_high below 0.
    """
    if not 0 <= clip_low < 1:
        raise ValueError(f"clip_low: got {clip_low!r}, expected 0 <= clip_low < 1")
    if not clip_high >= 0:
        raise ValueError(f"clip_high: got {clip_high!r}, expected at least 0")
    advantages = advantages.detach()
    log_ratio_BT = lp_BT - lp_old_BT.detach()
    ratio_BT = log_ratio_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    kept_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high)
    loss_BT = torch.maximum(-advantages * ratio_BT, -advantages * kept_BT)
    too_high_BT = (advantages > 0) & (ratio_BT > 1 + clip_high)
    too_low_BT = (advantages < 0) & (ratio_BT < 1 - clip_low)
    return PolicyLoss(loss_BT, (too_high_BT | too_low_BT).detach())
