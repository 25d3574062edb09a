"""Causal grouped-query attention with optional QK-norm, over packed rows or a key/value cache.

In: x (B, T, H), rotary tables, a mask; out: (B, T, H). Legend: B batch, T tokens, N query heads, K key/value heads, D head_dim, S slots.
GQA: Ainslie et al. 2023, arXiv 2305.13245. QK-norm per head before RoPE: Qwen3 report, arXiv 2505.09388.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.layers.kv_cache import CachePlan, KVCache
from models.layers.norm import RMSNorm
from models.layers.rope import rotate


def packed_mask(segments_BT: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive mask (B, 1, T, T): 0 where key j <= query i lie in the same segment, -inf elsewhere.

    Every token sees itself, so no row is empty. Built once per forward pass in the compute dtype: a boolean mask would be converted
    again in every layer.
    """
    length = segments_BT.shape[1]
    same_BTT = segments_BT[:, :, None] == segments_BT[:, None, :]
    visible_BTT = same_BTT & torch.ones(length, length, dtype=torch.bool, device=segments_BT.device).tril()
    mask = torch.zeros(visible_BTT.shape, dtype=dtype, device=segments_BT.device)
    return mask.masked_fill_(~visible_BTT, float("-inf")).unsqueeze(1)


class Attention(nn.Module):
    """Projections, optional per-head RMSNorm of q and k, rotary embedding, scaled dot product, output projection."""

    def __init__(
        self, *, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, qkv_bias: bool, qk_norm: bool,
        norm_eps: float,
    ) -> None:  # fmt: skip
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=qkv_bias)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=qkv_bias)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=qkv_bias)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        self.q_norm = RMSNorm(head_dim, norm_eps) if qk_norm else None
        self.k_norm = RMSNorm(head_dim, norm_eps) if qk_norm else None

    def project(self, x_BTH: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, N, T, D), keys and values (B, K, T, D): normalised and rotated, ready for the dot product."""
        heads = (*x_BTH.shape[:2], -1, self.head_dim)
        query, key, value = self.q_proj(x_BTH).view(heads), self.k_proj(x_BTH).view(heads), self.v_proj(x_BTH).view(heads)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = rotate(query, *tables), rotate(key, *tables)
        return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)

    def forward(self, x_BTH: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """Attention within the rows of x; mask None means causal over the whole row."""
        query, key, value = self.project(x_BTH, tables)
        return self._mix(query, key, value, mask, causal=mask is None)

    def decode(self, x_BTH: Tensor, tables: tuple[Tensor, Tensor], cache: KVCache, layer: int, plan: CachePlan) -> Tensor:
        """Attention of new tokens to the cached ones and to each other; writes their keys and values to the cache."""
        query, new_key, new_value = self.project(x_BTH, tables)
        key, value = cache.update(layer, new_key, new_value, plan)
        return self._mix(query, key.to(query.dtype), value.to(query.dtype), plan.mask, causal=plan.causal)

    def _mix(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
        if mask is not None and mask.dtype != query.dtype:
            mask = mask.to(query.dtype)
        # enable_gqa reads the shared heads in place: 10 to 25% faster on CPU, forward and backward, than repeating them.
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal, enable_gqa=query.shape[1] != key.shape[1]
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2))
