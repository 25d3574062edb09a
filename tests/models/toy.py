"""A decoder small enough to build in milliseconds, for every test that needs one."""

from __future__ import annotations

from dataclasses import replace

import torch

from models.architectures.decoder import Decoder, DecoderConfig, init_weights

TOY = DecoderConfig(
    vocab_size=61, num_layers=2, hidden_size=32, intermediate_size=48, num_heads=4, num_kv_heads=2, head_dim=8, max_seq_len=64,
    rope_base=1e4, norm_eps=1e-6, tied_head=True, qk_norm=True, qkv_bias=False,
)  # fmt: skip
FAMILIES = {
    "qwen3": TOY,
    "qwen3 wide heads": replace(TOY, head_dim=16, tied_head=False),
    "qwen2": replace(TOY, qk_norm=False, qkv_bias=True),
    "llama": replace(TOY, qk_norm=False, tied_head=False),
    "no sharing of heads": replace(TOY, num_kv_heads=4),
}


def toy_model(config: DecoderConfig = TOY, seed: int = 0, scale: float = 5.0) -> Decoder:
    """Matrices `scale` times the usual start, so that attention is far from uniform and a mistake shows in the logits; random biases."""
    model = Decoder(config)
    init_weights(model, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(scale)
            else:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def random_tokens(rows: int, length: int, config: DecoderConfig = TOY, seed: int = 0) -> torch.Tensor:
    """(rows, length) int64 token ids."""
    return torch.randint(0, config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))
