"""The optimizer that a stage's settings name, and one line on what it does to which parameters."""

from __future__ import annotations

import torch
from torch import nn

from models.optimizers.adamw import adamw
from models.optimizers.adamw_8bit import adamw_8bit
from models.optimizers.muon import MuonSettings, muon


def make_optimizer(
    name: str, model: nn.Module, *, lr: float, betas: tuple[float, float], weight_decay: float, muon_settings: MuonSettings
) -> torch.optim.Optimizer:
    """The optimizer `name` ("adamw", "adamw_8bit" or "muon") over the trainable parameters of `model`; `lr` is the peak.

    All put decay on matrices, embeddings included, and none on norm gains and biases. ValueError for another name, or when the package
    behind "adamw_8bit" is absent.
    """
    makers = {
        "adamw": lambda: adamw(model, lr, betas, weight_decay),
        "adamw_8bit": lambda: adamw_8bit(model, lr, betas, weight_decay),
        "muon": lambda: muon(model, lr, betas, weight_decay, muon_settings),
    }
    if name not in makers:
        raise ValueError(f"optimizer: got {name!r}, expected one of {', '.join(makers)}")
    return makers[name]()


def describe_groups(optim: torch.optim.Optimizer) -> str:
    """What moves and decays what: "Muon, decay 0.1: 28 tensors, 655,360 values; AdamW, no decay: 17 tensors, 1,408 values"."""
    lines = []
    for group in optim.param_groups:
        decay = f"decay {group['weight_decay']:g}" if group["weight_decay"] else "no decay"
        values = sum(p.numel() for p in group["params"])
        lines.append(f"{group.get('algorithm', type(optim).__name__)}, {decay}: {len(group['params'])} tensors, {values:,} values")
    return "; ".join(lines)
