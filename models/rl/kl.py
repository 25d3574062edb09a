"""Estimators of KL(policy || reference) from sampled tokens, per token: two log-probabilities -> one term.

Tokens are drawn from the policy; r = lp_ref - lp is the log ratio of the reference to the policy for the drawn token.

    k1 = -r               unbiased, may be negative
    k2 = r^2 / 2          biased, low variance; as a loss its gradient is exactly that of KL(policy || reference)
    k3 = exp(r) - 1 - r   unbiased, never negative; as a loss its gradient is that of KL(reference || policy)

k1 is for rewards only: as a loss its gradient is lp's own, which is zero in expectation, so the penalty would do nothing.
GRPO (arXiv 2402.03300) puts k3 into the loss. The estimators: Schulman 2020, "Approximating KL divergence".

Shapes: B completions, T positions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0

KlEstimator = Callable[[Tensor, Tensor], Tensor]


def k1(lp_BT: Tensor, lp_ref_BT: Tensor) -> Tensor:
    """-r = lp - lp_ref, (B, T)."""
    return lp_BT - lp_ref_BT.detach()


def k2(lp_BT: Tensor, lp_ref_BT: Tensor) -> Tensor:
    """r^2 / 2, (B, T)."""
    return 0.5 * (lp_ref_BT.detach() - lp_BT).square()


def k3(lp_BT: Tensor, lp_ref_BT: Tensor) -> Tensor:
    """exp(r) - 1 - r, (B, T), never negative.

    Uses expm1, or the value would drown in rounding near equality; r is held within +-20 inside the exponential.
    """
    r_BT = lp_ref_BT.detach() - lp_BT
    return torch.expm1(r_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)) - r_BT


KL_ESTIMATORS: dict[str, KlEstimator] = {"k1": k1, "k2": k2, "k3": k3}


def kl_loss_fn(name: str) -> KlEstimator:
    """The estimator called `name`, for use as a loss term. Raises ValueError listing the names, and for k1."""
    if name not in KL_ESTIMATORS:
        raise ValueError(f"kl_estimator: got {name!r}, expected one of {sorted(KL_ESTIMATORS)}")
    if name == "k1":
        raise ValueError(
            "kl_estimator: got 'k1' as a loss term, expected 'k2' or 'k3': the gradient of k1 is zero in expectation, "
            "so the penalty would have no effect; k2 has the exact gradient of KL(policy || reference)"
        )
    return KL_ESTIMATORS[name]
