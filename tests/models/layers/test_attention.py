"""Attention: the packed mask by hand, a loop-written reference with shared heads, QK-norm's scale invariance."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from models.layers.attention import Attention, packed_mask
from models.layers.rope import rope_tables


def attention(*, num_kv_heads: int = 2, qkv_bias: bool = False, qk_norm: bool = False) -> Attention:
    torch.manual_seed(0)
    return Attention(
        hidden_size=12, num_heads=4, num_kv_heads=num_kv_heads, head_dim=6, qkv_bias=qkv_bias, qk_norm=qk_norm, norm_eps=1e-6
    )


def slow_attention(layer: Attention, x_BTH: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
    """One query, one head at a time, straight from the definition."""
    query, key, value = layer.project(x_BTH, tables)
    batch, num_heads, length, head_dim = query.shape
    group = num_heads // key.shape[1]
    mixed = torch.zeros(batch, length, num_heads, head_dim)
    for b in range(batch):
        for head in range(num_heads):
            for t in range(length):
                scores = key[b, head // group] @ query[b, head, t] / math.sqrt(head_dim) + mask[b, 0, t]
                mixed[b, t, head] = torch.softmax(scores, dim=0) @ value[b, head // group]
    return layer.o_proj(mixed.flatten(2))


def test_packed_mask_by_hand() -> None:
    mask = packed_mask(torch.tensor([[7, 7, 8, 8]]), torch.float32)
    inf = -math.inf
    assert mask.tolist() == [[[[0, inf, inf, inf], [0, 0, inf, inf], [inf, inf, 0, inf], [inf, inf, 0, 0]]]]


def test_a_segment_id_that_comes_back_is_the_same_segment() -> None:
    """Equality of ids decides, not adjacency: the caller gives every document of a row its own id."""
    assert packed_mask(torch.tensor([[1, 2, 1]]), torch.float32)[0, 0, 2].tolist() == [0, -math.inf, 0]


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("qkv_bias", "qk_norm"), [(False, True), (True, False)])
@pytest.mark.parametrize("packed", [True, False])
def test_equals_the_definition(num_kv_heads: int, qkv_bias: bool, qk_norm: bool, packed: bool) -> None:
    layer = attention(num_kv_heads=num_kv_heads, qkv_bias=qkv_bias, qk_norm=qk_norm)
    x = torch.randn(2, 5, 12)
    tables = rope_tables(torch.arange(5)[None], 6, 1e4)
    segments = torch.tensor([[0, 0, 0, 1, 1], [3, 3, 4, 4, 4]]) if packed else torch.zeros(2, 5, dtype=torch.int64)
    mask = packed_mask(segments, torch.float32)
    out = layer(x, tables, mask if packed else None)
    torch.testing.assert_close(out, slow_attention(layer, x, tables, mask), atol=1e-5, rtol=1e-5)


def test_qk_norm_makes_attention_blind_to_the_scale_of_q() -> None:
    """Scaling q by 10 leaves the output unchanged with QK-norm (up to eps), and not without it."""
    x, tables = torch.randn(1, 6, 12), rope_tables(torch.arange(6)[None], 6, 1e4)
    moved = {}
    for qk_norm in (True, False):
        layer = attention(qk_norm=qk_norm)
        before = layer(x, tables, None)
        with torch.no_grad():
            layer.q_proj.weight.mul_(10)
        moved[qk_norm] = (layer(x, tables, None) - before).abs().max().item()
    assert moved[True] < 1e-4
    assert moved[False] > 1e-2
