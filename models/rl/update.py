"""Gradient of one policy update: rollouts, advantages and a loss made of independent choices -> .grad and diagnostics.

The objective is aggregate(ppo_clip) + kl_coef * aggregate(kl), with one set of global denominators for both. GRPO
(arXiv 2402.03300) is: advantage grpo, clip 0.2 / 0.2, k3, aggregation seq_mean_token_mean.

Shapes: B rows of a micro-batch, T positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.architectures.decoder import Decoder
from models.precision import hold_weights
from models.rl.aggregation import Totals, aggregation_fn
from models.rl.kl import kl_loss_fn
from models.rl.logprobs import token_logprobs
from models.rl.policy_losses import ppo_clip
from models.rl.rollout import RolloutBatch


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """What is minimised."""

    aggregation: str
    clip_low: float
    clip_high: float
    kl_coef: float
    """Weight of the KL penalty against the reference; 0 needs no reference."""
    kl_estimator: str
    temperature: float
    """Temperature the completions were sampled at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateStats:
    """Diagnostics of one update, over the rows that were given."""

    loss: float
    kl: float
    """Mean k3 per trained token; 0 without a reference."""
    clipped_tokens: int
    gap_max: float
    """Largest |trainer - sampler| log-probability of a token; meaningful before the first update after a rollout."""
    gap_mean: float
    old_lps: list[Tensor]
    """Log-probabilities under the weights of this update, one (B, T) per micro-batch: lp_old of the next ones."""


def policy_gradients(
    model: Decoder,
    batches: Sequence[RolloutBatch],
    totals: Totals,
    objective: Objective,
    *,
    old_lps: Sequence[Tensor] | None = None,
    reference_lps: Sequence[Tensor] | None = None,
) -> UpdateStats:
    """Add the gradient of the objective over `batches` to every .grad.

    `totals` are the denominators of the whole step; rows of zero advantage may be left out of `batches` when kl_coef is 0, as
    they add nothing, but not out of `totals`. `old_lps` None: the first update after a rollout, where lp_old is lp.
    Raises ValueError when kl_coef is positive and there are no reference log-probabilities.
    """
    if objective.kl_coef > 0 and reference_lps is None:
        raise ValueError(f"kl_coef: got {objective.kl_coef} without reference log-probabilities, expected them, or kl_coef 0")
    loss = kl = gap_max = gap_sum = 0.0
    clipped = tokens = 0
    lps = []
    with hold_weights(model):
        for i, batch in enumerate(batches):
            lp_BT = token_logprobs(model, batch.tokens_BT, batch.mask_BT, temperature=objective.temperature)
            lps.append(lp_BT.detach())
            loss_part, kl_part, clipped_BT = _loss_share(
                lp_BT, lps[i] if old_lps is None else old_lps[i], reference_lps[i] if reference_lps else None, batch, totals, objective
            )
            loss_part.backward()
            gap_BT = (lps[i] - batch.sampler_lp_BT).abs()
            loss += loss_part.item()
            kl += kl_part
            clipped += int((clipped_BT & batch.mask_BT).sum())
            tokens += int(batch.mask_BT.sum())
            gap_max = max(gap_max, gap_BT.max().item())
            gap_sum += gap_BT.sum(dtype=torch.float64).item()
    return UpdateStats(
        loss=loss, kl=kl, clipped_tokens=clipped, gap_max=gap_max, gap_mean=gap_sum / max(tokens, 1), old_lps=lps
    )


@torch.no_grad()
def reference_logprobs(reference: Decoder, batches: Sequence[RolloutBatch], temperature: float) -> list[Tensor]:
    """Log-probabilities of the sampled tokens under a frozen model, one (B, T) per micro-batch."""
    with hold_weights(reference):
        return [token_logprobs(reference, batch.tokens_BT, batch.mask_BT, temperature=temperature) for batch in batches]


def _loss_share(
    lp_BT: Tensor, lp_old_BT: Tensor, lp_ref_BT: Tensor | None, batch: RolloutBatch, totals: Totals, objective: Objective
) -> tuple[Tensor, float, Tensor]:
    """(differentiable share of the loss, share of the mean k3, clipped tokens) of one micro-batch."""
    aggregate = aggregation_fn(objective.aggregation)
    policy = ppo_clip(
        lp_BT, lp_old_BT, batch.advantages_B[:, None], clip_low=objective.clip_low, clip_high=objective.clip_high
    )
    loss = aggregate(policy.loss_BT, batch.mask_BT, totals)
    if lp_ref_BT is None or objective.kl_coef == 0:
        return loss, 0.0, policy.clipped_BT
    kl_BT = kl_loss_fn(objective.kl_estimator)(lp_BT, lp_ref_BT)
    observed = aggregation_fn("token_mean")(kl_loss_fn("k3")(lp_BT.detach(), lp_ref_BT), batch.mask_BT, totals)
    return loss + objective.kl_coef * aggregate(kl_BT, batch.mask_BT, totals), observed.item(), policy.clipped_BT
