"""From per-token terms to one loss: the ways to average, all with global denominators.

A denominator counts the whole optimizer step, not the micro-batch at hand, so micro-batch losses simply add up and neither
the way the step is cut, nor the number of processes, nor the padding width changes a gradient.

    token_mean           sum(l m) / sum(m)                     DAPO, arXiv 2503.14476
    seq_mean_token_mean  mean over sequences of (sum_t l m / n_i)   GRPO, arXiv 2402.03300
    seq_mean_token_sum   mean over sequences of sum_t l m      RLOO, arXiv 2402.14740
    seq_sum_const        sum(l m) / (sequences * max_len)      Dr. GRPO, arXiv 2503.20783

m is 1 for the tokens that train: a completion up to and including its first end token. Sequences without such a token (masked
truncated ones) are in no denominator. A step with no trained token at all has loss 0.

Shapes: B completions, T positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """Denominators of one optimizer step, summed over its micro-batches (and processes)."""

    tokens: int
    """Trained tokens, sum of the mask."""
    sequences: int
    """Sequences with at least one trained token."""
    max_len: int
    """The constant of seq_sum_const: the longest completion allowed, in tokens."""


Aggregation = Callable[[Tensor, Tensor, Totals], Tensor]


def count_totals(mask_BT: Tensor, max_len: int) -> Totals:
    """Denominators of a step whose trained tokens are `mask_BT`. Raises ValueError for max_len below 1."""
    if max_len < 1:
        raise ValueError(f"max_len: got {max_len}, expected at least 1")
    mask_BT = mask_BT.bool()
    return Totals(tokens=int(mask_BT.sum()), sequences=int(mask_BT.any(dim=1).sum()), max_len=max_len)


def token_mean(terms_BT: Tensor, mask_BT: Tensor, totals: Totals) -> Tensor:
    """This part's share of the mean over all trained tokens of the step. Scalar."""
    return _masked(terms_BT, mask_BT).sum() / max(totals.tokens, 1)


def seq_mean_token_mean(terms_BT: Tensor, mask_BT: Tensor, totals: Totals) -> Tensor:
    """This part's share of the mean over sequences of each sequence's token mean. Scalar."""
    lengths_B = mask_BT.sum(dim=1).clamp(min=1)
    return (_masked(terms_BT, mask_BT).sum(dim=1) / lengths_B).sum() / max(totals.sequences, 1)


def seq_mean_token_sum(terms_BT: Tensor, mask_BT: Tensor, totals: Totals) -> Tensor:
    """This part's share of the mean over sequences of each sequence's token sum. Scalar."""
    return _masked(terms_BT, mask_BT).sum() / max(totals.sequences, 1)


def seq_sum_const(terms_BT: Tensor, mask_BT: Tensor, totals: Totals) -> Tensor:
    """This part's share of the token sum over sequences times the constant `max_len`. Scalar."""
    return _masked(terms_BT, mask_BT).sum() / max(totals.sequences * totals.max_len, 1)


AGGREGATIONS: dict[str, Aggregation] = {
    "token_mean": token_mean,
    "seq_mean_token_mean": seq_mean_token_mean,
    "seq_mean_token_sum": seq_mean_token_sum,
    "seq_sum_const": seq_sum_const,
}


def aggregation_fn(name: str) -> Aggregation:
    """The aggregation called `name`. Raises ValueError listing the names."""
    if name not in AGGREGATIONS:
        raise ValueError(f"aggregation: got {name!r}, expected one of {sorted(AGGREGATIONS)}")
    return AGGREGATIONS[name]


def _masked(terms_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Terms with exactly 0 outside the mask, in value and gradient, whatever (NaN included) stands there."""
    if terms_BT.shape != mask_BT.shape:
        raise ValueError(f"terms: got shape {tuple(terms_BT.shape)}, expected {tuple(mask_BT.shape)} as the mask")
    return torch.where(mask_BT.bool(), terms_BT, 0.0)
