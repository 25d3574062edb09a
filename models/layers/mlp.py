"""SwiGLU feed-forward: down(silu(gate(x)) * up(x)). In and out: (B, T, H). Shazeer 2020, arXiv 2002.05202."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class SwiGLU(nn.Module):
    """Gated feed-forward block of width `intermediate_size`, without biases."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x_BTH: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x_BTH)) * self.up_proj(x_BTH))
