"""SwiGLU: a hand-worked value and the parameter names."""

from __future__ import annotations

import math

import torch

from models.layers.mlp import SwiGLU


def test_hand_worked_value() -> None:
    mlp = SwiGLU(1, 2)
    with torch.no_grad():
        mlp.gate_proj.weight.copy_(torch.tensor([[1.0], [-2.0]]))
        mlp.up_proj.weight.copy_(torch.tensor([[3.0], [5.0]]))
        mlp.down_proj.weight.copy_(torch.tensor([[1.0, 0.5]]))

    def silu(x: float) -> float:
        return x / (1 + math.exp(-x))

    expected = silu(2.0) * 6.0 + 0.5 * silu(-4.0) * 10.0
    torch.testing.assert_close(mlp(torch.tensor([[[2.0]]])).item(), expected)


def test_parameters_have_hugging_face_names_and_no_biases() -> None:
    assert [name for name, _ in SwiGLU(4, 6).named_parameters()] == ["gate_proj.weight", "up_proj.weight", "down_proj.weight"]
