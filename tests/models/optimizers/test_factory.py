"""The named optimizers and what is said of their groups."""

from __future__ import annotations

import pytest
import torch

from models.optimizers.factory import describe_groups, make_optimizer
from models.optimizers.muon import Muon, MuonSettings
from tests.models.toy import toy_model

SETTINGS = MuonSettings(momentum=0.95, nesterov=True, update_rms=0.18, fast_steps=8, settling_steps=2, newton_schulz_dtype="fp32")


def make(name: str, weight_decay: float = 0.1) -> torch.optim.Optimizer:
    return make_optimizer(name, toy_model(), lr=0.01, betas=(0.9, 0.95), weight_decay=weight_decay, muon_settings=SETTINGS)


def test_each_name_gives_its_optimizer_and_its_groups_are_told():
    """Two layers of width 32 with 4 and 2 heads of 8: 32 * (32 + 16 + 16 + 32) + 3 * 32 * 48 = 7,680 values a layer; embedding 61 * 32;
    gains 2 * (32 + 32 + 8 + 8) + 32."""
    assert type(make("adamw")) is torch.optim.AdamW and type(make("muon")) is Muon
    assert describe_groups(make("adamw")) == "AdamW, decay 0.1: 15 tensors, 17,312 values; AdamW, no decay: 9 tensors, 192 values"
    assert describe_groups(make("muon")) == (
        "Muon, decay 0.1: 14 tensors, 15,360 values; AdamW, decay 0.1: 1 tensors, 1,952 values; AdamW, no decay: 9 tensors, 192 values"
    )
    assert describe_groups(make("adamw", 0.0)).startswith("AdamW, no decay: 15 tensors")


def test_other_names_are_refused():
    with pytest.raises(ValueError, match="got 'sgd', expected one of adamw, adamw_8bit, muon"):
        make("sgd")
