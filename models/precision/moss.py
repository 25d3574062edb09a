"""The weight scale of `moss`, predicted from the optimizer's bounded step instead of measured.

In: the optimizer's rates. Out: a bound b on max|W| that needs no look at W, and from it the scale b / 448. An AdamW update moves
an element by at most lr * kappa after shrinking it by 1 - lr * weight_decay, so
    b <- |1 - lr * weight_decay| * b + kappa * lr
keeps max|W| <= b for any schedule, decay and gradient. Every N steps b is measured again, which takes back the slack.
Method: arXiv 2511.05811, there with kappa = 1, which holds for equal betas only. Here kappa is the supremum: by Cauchy-Schwarz on the
two moving averages of the same gradients,
    |m_hat / sqrt(v_hat)| <= sqrt(sum_i a_i^2 / c_i) <= (1 - beta1) / sqrt((1 - beta2) (1 - beta1^2 / beta2))
with a_i, c_i the weights of step i in the averages. It is reached: sparse gradients of embeddings and rare experts come close.

A scale that is too large costs a floating-point format nothing until numbers reach its subnormal range: 256 times too large is free.
One that is too small clips.
"""

from __future__ import annotations

import math

# Relative rounding of one float32 update (a few operations of 2**-24 each) and of the scale's own arithmetic.
ROUNDING = 2.0**-20


def adamw_kappa(beta1: float, beta2: float) -> float:
    """Largest |m_hat / sqrt(v_hat)| that AdamW can reach, at any step and for any gradients; ValueError when there is none.

    (0.9, 0.95): 1.165; (0.9, 0.999): 7.27; equal betas: 1 or less than rounding above it.
    """
    if not (0 <= beta1 < 1 and 0 < beta2 < 1 and beta1 * beta1 < beta2):
        raise ValueError(
            f"moss: got betas ({beta1}, {beta2}), expected 0 <= beta1 < 1 and beta1**2 < beta2 < 1; outside it an AdamW update has no "
            "bound and the weight scale cannot be predicted; choose another precision or other betas"
        )
    return (1 - beta1) / math.sqrt((1 - beta2) * (1 - beta1 * beta1 / beta2))


def adamw_reach(beta1: float, beta2: float) -> float:
    """`adamw_kappa` widened by what float32 moments can be off: each average forgets its roundings with its own memory 1 / (1 - beta)."""
    return adamw_kappa(beta1, beta2) * (1 + 2.0**-22 * (1 / (1 - beta1) + 1 / (1 - beta2)))


def measured_bound(largest: float) -> float:
    """b for a weight whose max|W| is `largest`, with room for the rounding of scale and reciprocal."""
    return largest * (1 + ROUNDING)


def advanced_bound(bound: float, lr: float, weight_decay: float, kappa: float) -> float:
    """b after one update with these rates. NaN and infinity stay."""
    return (abs(1 - lr * weight_decay) * bound + kappa * lr) * (1 + ROUNDING)
