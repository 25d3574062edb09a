"""Parameters, FLOPs and bytes of a decoder, from its config alone: no tensor is made.

In: a DecoderConfig and a batch shape; out: whole numbers. FLOPs follow Chowdhery et al. 2022 (PaLM, arXiv 2204.02311, appendix B): two per
multiply-add, backward twice the forward, attention counted over the full row although causal and packed rows skip part of it, so
that utilisation figures compare with published ones.
"""

from __future__ import annotations

from models.architectures.decoder import DecoderConfig

# Logits, log-probabilities and the gradient, float32, alive together when the loss starts its backward pass.
LOGIT_COPIES = 3


def num_params(config: DecoderConfig) -> int:
    """Number of parameters, exact; a tied head counts once."""
    head = 0 if config.tied_head else config.vocab_size * config.hidden_size
    return config.vocab_size * config.hidden_size + num_params_without_embeddings(config) + head


def num_params_without_embeddings(config: DecoderConfig) -> int:
    """Parameters of the blocks and the final norm: no embedding, no head."""
    norms = 2 * config.hidden_size + (2 * config.head_dim if config.qk_norm else 0)
    biases = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim if config.qkv_bias else 0
    return config.num_layers * (_layer_weights(config) + norms + biases) + config.hidden_size


def forward_flops_per_token(config: DecoderConfig, seq_len: int) -> int:
    """FLOPs of one token's forward pass in a row of seq_len tokens: matrix products, head and attention."""
    matrices = config.num_layers * _layer_weights(config) + config.vocab_size * config.hidden_size
    attention = 4 * config.num_layers * config.num_heads * config.head_dim * seq_len
    return 2 * matrices + attention


def flops_per_token(config: DecoderConfig, seq_len: int) -> int:
    """FLOPs of training on one token (forward and backward) in rows of seq_len tokens."""
    return 3 * forward_flops_per_token(config, seq_len)


def kv_cache_bytes(config: DecoderConfig, rows: int, max_len: int, element_bytes: int) -> int:
    """Bytes of a KVCache of `rows` rows of `max_len` slots."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * rows * max_len * element_bytes


def activation_bytes(config: DecoderConfig, *, rows: int, seq_len: int, packed: bool, element_bytes: int) -> int:
    """Bytes kept between forward and backward below the head, nothing recomputed; packed rows add a mask and own rotary tables.

    Per token and layer: input and output of both norms, q and k before and after their norm, v, the attention output, and four
    values of the feed-forward width (gate, silu(gate), up, their product); plus one float32 per norm row and attention row.
    Exact for the CPU path in float32; fused kernels elsewhere keep less.
    """
    heads = config.num_heads + config.num_kv_heads
    wide = 4 * config.hidden_size + 4 * config.intermediate_size + 2 * heads * config.head_dim
    wide += heads * config.head_dim if config.qk_norm else 0
    reductions = 2 + config.num_heads + (heads if config.qk_norm else 0)
    per_layer = wide * element_bytes + reductions * 4
    final_norm_and_token = 2 * config.hidden_size * element_bytes + 4 + 8
    tables = 2 * (rows if packed else 1) * seq_len * config.head_dim * 4
    mask = rows * seq_len * seq_len * element_bytes if packed else 0
    return rows * seq_len * (config.num_layers * per_layer + final_norm_and_token) + tables + mask


def memory_estimate(
    config: DecoderConfig, *, rows: int, seq_len: int, packed: bool = True, weight_bytes: int = 4, grad_bytes: int = 4,
    optimizer_bytes: int = 8, element_bytes: int = 4, chunked_loss: bool = False,
) -> dict[str, int]:  # fmt: skip
    """Bytes by part at the peak of a training step on `rows` rows of seq_len tokens, and their total. Defaults: float32, AdamW.

    weight_bytes, grad_bytes and optimizer_bytes are per parameter, element_bytes per activation value. chunked_loss: the loss never
    holds all logits. Temporaries, allocator slack and the process itself are not counted.
    """
    params = num_params(config)
    parts = {
        "weights": params * weight_bytes,
        "gradients": params * grad_bytes,
        "optimizer": params * optimizer_bytes,
        "activations": activation_bytes(config, rows=rows, seq_len=seq_len, packed=packed, element_bytes=element_bytes),
        "logits": 0 if chunked_loss else LOGIT_COPIES * rows * seq_len * config.vocab_size * 4,
    }
    return {**parts, "total": sum(parts.values())}


def _layer_weights(config: DecoderConfig) -> int:
    """Matrix entries of one block: q and o, k and v, and the three feed-forward matrices."""
    query_and_output = 2 * config.hidden_size * config.num_heads * config.head_dim
    key_and_value = 2 * config.hidden_size * config.num_kv_heads * config.head_dim
    return query_and_output + key_and_value + 3 * config.hidden_size * config.intermediate_size
