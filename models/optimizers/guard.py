"""The guarded update: clip, then step, or leave everything untouched when a gradient is not finite.

In: an optimizer whose parameters hold gradients. Out: the gradient norm and whether the update was skipped. The norm of all gradients
together is non-finite as soon as one element is, in whichever format it overflowed, so this one number is the whole check.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import nn


class StepResult(NamedTuple):
    """Outcome of one update."""

    grad_norm: float
    """Euclidean norm of all gradients before clipping; inf or NaN when the update was skipped."""
    skipped: bool


@torch.no_grad()
def guarded_step(optim: torch.optim.Optimizer, params: Iterable[nn.Parameter], clip_norm: float) -> StepResult:
    """One optimizer step with gradients scaled to a norm of at most `clip_norm` (math.inf: no clipping).

    If the norm is not finite no parameter and no optimizer state changes, bit for bit, and `skipped` is true; the caller counts. The
    gradients are cleared either way, so a bad one cannot leak into the next accumulation. `params` are the parameters whose
    gradients count, normally all trained ones. Raises ValueError when none has a gradient or clip_norm is not positive.
    """
    if not clip_norm > 0:
        raise ValueError(f"clip_norm: got {clip_norm}, expected a number above 0; math.inf switches clipping off")
    grads = [p.grad for p in params if p.grad is not None]
    if not grads:
        raise ValueError("guarded_step: got no gradient on any parameter; call backward first")
    norm = float(nn.utils.get_total_norm(grads))
    skipped = not math.isfinite(norm)
    if not skipped:
        if norm > clip_norm:
            torch._foreach_mul_(grads, clip_norm / norm)
        optim.step()
    optim.zero_grad(set_to_none=True)
    return StepResult(grad_norm=norm, skipped=skipped)
