"""The optimizer and schedule settings that pretrain and sft share.

In: a section of params. Out: the optimizer over a model and the multiplier of its learning rate.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import nn

from models.optimizers.factory import make_optimizer
from models.optimizers.muon import MuonSettings
from models.optimizers.schedules import Schedule, make_schedule
from stages.config import Section


class Muon(Section):
    """Values of Muon's own: models/optimizers/muon.py. Without effect under another optimizer."""

    momentum: float = Field(ge=0, lt=1)
    nesterov: bool
    update_rms: float = Field(gt=0)
    """Root mean square of an update at learning rate 1."""
    fast_steps: int = Field(ge=0)
    settling_steps: int = Field(ge=0)
    newton_schulz_dtype: Literal["fp32", "bf16"]


class Optimization(Section):
    """How the weights move: the fields that every stage with the shared training loop has."""

    optimizer: Literal["adamw", "muon", "adamw_8bit"]
    """Which update; muon takes the hidden matrices and leaves embeddings, norms, biases and head to adamw."""
    muon: Muon
    peak_lr: float = Field(gt=0)
    schedule: Literal["wsd", "cosine", "linear", "constant"]
    """Shape of the learning rate after the warm-up: models/optimizers/schedules.py."""
    warmup_steps: int = Field(ge=0)
    decay_fraction: float | None = Field(ge=0, le=1)
    """wsd: share of the steps, at the end, over which the rate falls to zero; null for the others."""
    final_fraction: float | None = Field(ge=0, le=1)
    """cosine and linear: share of the peak that the rate ends at; null for the others."""
    weight_decay: float = Field(ge=0)
    """Decoupled; on matrices and embeddings, not on norm gains and biases."""
    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    clip_norm: float = Field(gt=0)
    """Largest norm of all gradients together, before any optimizer sees them."""

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer over the trainable parameters of `model`. ValueError for a name or value that cannot be had."""
        return make_optimizer(self.optimizer, model, lr=self.peak_lr, betas=(self.beta1, self.beta2), weight_decay=self.weight_decay,
                              muon_settings=MuonSettings(**self.muon.model_dump()))

    def make_schedule(self, total_steps: int) -> Schedule:
        """Update index to the share of peak_lr. ValueError when warm-up and decay do not fit the run, or a value has no effect."""
        return make_schedule(self.schedule, total=total_steps, warmup=self.warmup_steps, decay_fraction=self.decay_fraction,
                             final_fraction=self.final_fraction)
