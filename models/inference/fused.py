"""A decoder rearranged for generation: the same function of the same weights in fewer, larger operations.

In: a Decoder with plain linear layers. Out: an object with the forward pass of generation. For small models a decode step costs
more in starting operations than in arithmetic, so per layer
- query, key and value projections are one matrix product, and gate and up another;
- the gains of the two layer norms are folded into the matrices they feed;
- queries and keys are normalised and rotated together, and the rotation is one complex multiplication: the rows of the query and
  key projections are reordered so that the two elements of a rotary pair lie side by side. Dot products do not see the order.

Logits equal those of `Decoder.decode` up to rounding. Weights are copied, so an instance is made anew whenever they change.

Shapes: B rows, T new tokens, H hidden, N query heads, K key/value heads, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.architectures.decoder import Block, Decoder
from models.layers.kv_cache import CachePlan, KVCache
from models.layers.rope import inverse_frequencies

LARGEST = 50_000_000
"""Parameters above which a step is arithmetic, not overhead, and a second copy of the weights is not worth its memory."""


@dataclass(frozen=True, slots=True)
class FusedBlock:
    """Weights of one layer."""

    qkv: Tensor
    """((N + 2K) * D, H), input norm's gain folded in."""
    qkv_bias: Tensor | None
    qk_gain: Tensor | None
    """(N + K, D): gains of the query and key norms, the queries' times the scale of the dot product."""
    output: Tensor
    gate_up: Tensor
    """(2 * intermediate, H), the second norm's gain folded in."""
    down: Tensor


class FusedDecoder:
    """Generation's forward pass over a copy of a decoder's weights."""

    def __init__(self, model: Decoder) -> None:
        self.config = model.config
        self.embedding = model.model.embed_tokens.weight
        self.norm = model.model.norm
        self.blocks = [_fuse_block(block, model) for block in model.model.layers]
        self.frequencies = inverse_frequencies(self.config.head_dim, self.config.rope_base, self.embedding.device)

    def hidden(self, tokens_BT: Tensor, positions_BT: Tensor, cache: KVCache, rows: Tensor | None) -> Tensor:
        """Final-norm output (B, T, H) of new tokens; their keys and values are added to the cache (its rows `rows`, None: all)."""
        x_BTH = F.embedding(tokens_BT, self.embedding)
        plan = cache.plan(positions_BT, rows, x_BTH.dtype)
        angles = positions_BT[..., None, None] * self.frequencies
        turn = torch.polar(torch.ones_like(angles), angles)
        for layer, block in enumerate(self.blocks):
            self._block(x_BTH, turn, block, cache, layer, plan)
        return self.norm(x_BTH)

    def _block(self, x_BTH: Tensor, turn: Tensor, block: FusedBlock, cache: KVCache, layer: int, plan: CachePlan) -> None:
        """One layer, in place."""
        shape, queries = self.config, self.config.num_heads
        turned = queries + shape.num_kv_heads
        heads = F.linear(_unit_rms(x_BTH, shape.norm_eps), block.qkv, block.qkv_bias).unflatten(-1, (-1, shape.head_dim))
        query_key, value = heads[:, :, :turned], heads[:, :, turned:]
        if block.qk_gain is not None:
            query_key = _unit_rms(query_key, shape.norm_eps).mul_(block.qk_gain)
        pairs = torch.view_as_complex(query_key.unflatten(-1, (-1, 2)))
        query_key = torch.view_as_real(pairs * turn).flatten(-2)
        query, key = query_key[:, :, :queries].transpose(1, 2), query_key[:, :, queries:].transpose(1, 2)
        key, value = cache.update(layer, key, value.transpose(1, 2), plan)
        x_BTH += F.linear(_attend(query, key, value, plan), block.output)
        gate, up = F.linear(_unit_rms(x_BTH, shape.norm_eps), block.gate_up).chunk(2, dim=-1)
        x_BTH += F.linear(F.silu(gate).mul_(up), block.down)


def can_fuse(model: Decoder) -> bool:
    """Whether the model is small, in float32, and all its layers are plain: nothing quantised, no adapter around one."""
    attentions, mlps = [block.self_attn for block in model.model.layers], [block.mlp for block in model.model.layers]
    layers = [layer for a in attentions for layer in (a.q_proj, a.k_proj, a.v_proj, a.o_proj)]
    layers += [layer for m in mlps for layer in (m.gate_proj, m.up_proj, m.down_proj)]
    parameters = list(model.parameters())
    plain = all(type(layer) is nn.Linear for layer in layers) and all(p.dtype == torch.float32 for p in parameters)
    return plain and sum(p.numel() for p in parameters) <= LARGEST


def _fuse_block(block: Block, model: Decoder) -> FusedBlock:
    shape, attention, mlp = model.config, block.self_attn, block.mlp
    scale = shape.head_dim**-0.5
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    reorder = (_pairs_adjacent, _pairs_adjacent, lambda weight, head_dim: weight)
    qkv = torch.cat([order(p.weight, shape.head_dim) for p, order in zip(projections, reorder, strict=True)])
    bias = None
    if attention.q_proj.bias is not None:
        bias = torch.cat([order(p.bias, shape.head_dim) for p, order in zip(projections, reorder, strict=True)])
    gain = None
    if attention.q_norm is not None:
        gains = [_pairs_adjacent(norm.weight, shape.head_dim) for norm in (attention.q_norm, attention.k_norm)]
        gain = torch.cat([gains[0].expand(shape.num_heads, -1) * scale, gains[1].expand(shape.num_kv_heads, -1)])
    else:
        rows = shape.num_heads * shape.head_dim
        qkv[:rows] *= scale
        if bias is not None:
            bias[:rows] *= scale
    return FusedBlock(
        qkv=qkv * block.input_layernorm.weight,
        qkv_bias=bias,
        qk_gain=gain,
        output=attention.o_proj.weight,
        gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]) * block.post_attention_layernorm.weight,
        down=mlp.down_proj.weight,
    )


def _pairs_adjacent(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder rows within each head from (0, 1, ..., D-1) to (0, D/2, 1, D/2 + 1, ...)."""
    return weight.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)


def _unit_rms(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last dimension: RMSNorm without its gain."""
    return x * x.square().mean(dim=-1, keepdim=True).add_(eps).rsqrt_()


def _attend(query_BNTD: Tensor, key: Tensor, value: Tensor, plan: CachePlan) -> Tensor:
    """Attention output (B, T, N * D); the queries are scaled already."""
    batch, heads, length, head_dim = query_BNTD.shape
    groups = key.shape[1]
    if length == 1:
        # One query per head: the heads that share a key become its queries, and nothing has to be repeated.
        mask = None if plan.mask is None else plan.mask.expand(batch, 1, heads // groups, plan.used)
        query = query_BNTD.reshape(batch, groups, heads // groups, head_dim)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0).view(batch, 1, heads * head_dim)
    mixed = F.scaled_dot_product_attention(
        query_BNTD, key, value, attn_mask=plan.mask, is_causal=plan.causal, scale=1.0, enable_gqa=heads != groups
    )
    return mixed.transpose(1, 2).flatten(2)
