"""The decoder: token ids -> logits. Qwen3-shaped; flags make it Qwen2 (qkv_bias, no qk_norm) or Llama (neither).

Pre-norm blocks of grouped-query attention and SwiGLU, RMSNorm, rotary positions, tied or untied head. Parameter names are those of
Hugging Face's Qwen3, Qwen2 and Llama, so a state dict moves either way without renaming. Qwen3 report: arXiv 2505.09388.

Legend: B batch, T tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.layers.attention import Attention, packed_mask
from models.layers.kv_cache import CachePlan, KVCache
from models.layers.mlp import SwiGLU
from models.layers.norm import RMSNorm
from models.layers.rope import rope_tables


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderConfig:
    """Shape of a decoder. Every field must be given; a value that cannot work raises ValueError."""

    vocab_size: int
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    """Width of one head; num_heads * head_dim may differ from hidden_size."""
    max_seq_len: int
    """Longest row the model accepts, in tokens."""
    rope_base: float
    norm_eps: float
    tied_head: bool
    """The output head is the embedding matrix; no lm_head.weight exists."""
    qk_norm: bool
    """RMSNorm over head_dim of queries and keys, before the rotation (Qwen3)."""
    qkv_bias: bool
    """Biases on the q, k and v projections (Qwen2)."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads",
                     "head_dim", "max_seq_len"):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"DecoderConfig.{name}: got {value!r}; expected a whole number >= 1")
        for name in ("tied_head", "qk_norm", "qkv_bias"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"DecoderConfig.{name}: got {getattr(self, name)!r}; expected true or false")
        for name in ("rope_base", "norm_eps"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
                raise ValueError(f"DecoderConfig.{name}: got {value!r}; expected a finite number above 0")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"DecoderConfig: got num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}; expected num_heads to be a "
                "multiple of num_kv_heads; lower num_kv_heads to a divisor"
            )
        if self.head_dim % 2:
            raise ValueError(f"DecoderConfig.head_dim: got {self.head_dim}; expected an even number (rotary pairs)")

    def to_dict(self) -> dict[str, object]:
        """Plain dict for JSON; `from_dict` gives the same config back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, object]) -> DecoderConfig:
        """Config from a dict with exactly the fields above; an unknown or missing key raises ValueError."""
        known = {field.name for field in fields(cls)}
        unknown, missing = sorted(set(values) - known), sorted(known - set(values))
        if unknown or missing:
            raise ValueError(f"DecoderConfig: got unknown keys {unknown}, missing keys {missing}; expected exactly {sorted(known)}")
        return cls(**values)  # type: ignore[arg-type]


class Block(nn.Module):
    """One layer: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(
            hidden_size=config.hidden_size, num_heads=config.num_heads, num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim, qkv_bias=config.qkv_bias, qk_norm=config.qk_norm, norm_eps=config.norm_eps,
        )  # fmt: skip
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = SwiGLU(config.hidden_size, config.intermediate_size)

    def forward(self, x_BTH: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        x_BTH = x_BTH + self.self_attn(self.input_layernorm(x_BTH), tables, mask)
        return x_BTH + self.mlp(self.post_attention_layernorm(x_BTH))

    def decode(self, x_BTH: Tensor, tables: tuple[Tensor, Tensor], cache: KVCache, layer: int, plan: CachePlan) -> Tensor:
        """The same for new tokens only, with the past in `cache`."""
        x_BTH = x_BTH + self.self_attn.decode(self.input_layernorm(x_BTH), tables, cache, layer, plan)
        return x_BTH + self.mlp(self.post_attention_layernorm(x_BTH))


class Trunk(nn.Module):
    """Embedding, blocks and final norm: everything below the head."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)


class Decoder(nn.Module):
    """Causal language model. Weights are whatever torch gives them until `init_weights` or a load."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.lm_head = None if config.tied_head else nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(
        self, tokens_BT: Tensor, positions_BT: Tensor | None = None, segments_BT: Tensor | None = None
    ) -> Tensor:
        """Logits (B, T, V) in float32; logits at t predict token t + 1. See `hidden` for the arguments."""
        return self.head(self.hidden(tokens_BT, positions_BT, segments_BT))

    def hidden(
        self, tokens_BT: Tensor, positions_BT: Tensor | None = None, segments_BT: Tensor | None = None
    ) -> Tensor:
        """Final-norm output (B, T, H).

        tokens int64. positions int64, None: 0..T-1 in every row. segments int, None: one segment per row; otherwise a token sees
        the tokens at or before it whose segment equals its own. Raises ValueError for rows longer than max_seq_len.
        """
        length = tokens_BT.shape[1]
        if length > self.config.max_seq_len:
            raise ValueError(
                f"Decoder: got rows of {length} tokens; expected at most max_seq_len={self.config.max_seq_len}; shorten the rows or "
                "raise max_seq_len"
            )
        if positions_BT is None:
            positions_BT = torch.arange(length, device=tokens_BT.device).unsqueeze(0)
        x_BTH = self.model.embed_tokens(tokens_BT)
        tables = rope_tables(positions_BT, self.config.head_dim, self.config.rope_base)
        mask = None if segments_BT is None else packed_mask(segments_BT, x_BTH.dtype)
        for block in self.model.layers:
            x_BTH = block(x_BTH, tables, mask)
        return self.model.norm(x_BTH)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits (..., V) in float32 from final-norm output (..., H)."""
        weight_VH = self.head_weight
        return F.linear(hidden.to(weight_VH.dtype), weight_VH).float()

    @property
    def head_weight(self) -> Tensor:
        """The head matrix (V, H): the embedding when tied."""
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    def decode(
        self, tokens_BT: Tensor, positions_BT: Tensor | None, cache: KVCache, rows: Tensor | list[int] | None = None
    ) -> Tensor:
        """Logits (B, T, V) float32 of new tokens, given the cache; their keys and values are added to it.

        positions are the slots to write, None: each row continues at its own length. rows (B,) picks the cache rows, None: all in
        order. A right-padded prompt is passed whole (positions 0..T-1), then `cache.set_lengths` gets the true lengths; its next-token
        logits are those at length - 1. Raises ValueError when a position does not fit the cache.
        """
        return self.head(self.decode_hidden(tokens_BT, positions_BT, cache, rows))

    def decode_hidden(
        self, tokens_BT: Tensor, positions_BT: Tensor | None, cache: KVCache, rows: Tensor | list[int] | None = None
    ) -> Tensor:
        """`decode` without the head: final-norm output (B, T, H), for callers that need logits at few positions."""
        if positions_BT is None:
            lengths_B = cache.lengths_B if rows is None else cache.lengths_B[rows]
            positions_BT = lengths_B[:, None] + torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        if positions_BT.shape != tokens_BT.shape:
            raise ValueError(
                f"Decoder.decode: got tokens {tuple(tokens_BT.shape)} for positions {tuple(positions_BT.shape)}; expected equal shapes, one "
                f"row per cache row ({cache.batch}); pass rows= or call cache.keep() first"
            )
        x_BTH = self.model.embed_tokens(tokens_BT)
        plan = cache.plan(positions_BT, rows, x_BTH.dtype)
        tables = rope_tables(positions_BT, self.config.head_dim, self.config.rope_base)
        for layer, block in enumerate(self.model.layers):
            x_BTH = block.decode(x_BTH, tables, cache, layer, plan)
        return self.model.norm(x_BTH)


def init_weights(model: Decoder, seed: int) -> None:
    """Fills every parameter in place from its own generator: normal(0, 0.02), residual outputs scaled by 1/sqrt(2 * layers), norms 1, biases 0.

    The same seed gives the same weights whatever ran before; the global random state is not touched. Values are drawn on CPU, so every
    device gets the same. Residual scaling: Radford et al. 2019 (GPT-2), section 2.3.
    """
    generator = torch.Generator().manual_seed(seed)
    residual_std = 0.02 / (2 * model.config.num_layers) ** 0.5
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            elif name.endswith(".bias"):
                parameter.zero_()
            else:
                std = residual_std if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
                drawn = torch.empty(parameter.shape, dtype=torch.float32).normal_(0.0, std, generator=generator)
                parameter.copy_(drawn)
