"""Published sizes, and `debug`, which runs in milliseconds on a CPU. PRESETS maps a name to a DecoderConfig; `preset` looks one up.

Qwen3: arXiv 2505.09388 table 1 (dense models). The longer contexts of that table come from YaRN at inference; max_seq_len here is the
length the weights were trained at. Qwen2.5: arXiv 2412.15115. TinyLlama: arXiv 2401.02385.
"""

from __future__ import annotations

from dataclasses import replace

from models.architectures.decoder import DecoderConfig

_QWEN3_0_6B = DecoderConfig(
    vocab_size=151_936, num_layers=28, hidden_size=1024, intermediate_size=3072, num_heads=16, num_kv_heads=8, head_dim=128,
    max_seq_len=32_768, rope_base=1e6, norm_eps=1e-6, tied_head=True, qk_norm=True, qkv_bias=False,
)  # fmt: skip
_QWEN3_8B = replace(_QWEN3_0_6B, num_layers=36, hidden_size=4096, intermediate_size=12_288, num_heads=32, tied_head=False)

PRESETS: dict[str, DecoderConfig] = {
    "debug": DecoderConfig(
        vocab_size=512, num_layers=2, hidden_size=64, intermediate_size=192, num_heads=4, num_kv_heads=2, head_dim=16,
        max_seq_len=256, rope_base=1e4, norm_eps=1e-6, tied_head=True, qk_norm=True, qkv_bias=False,
    ),  # fmt: skip
    "qwen3_0_6b": _QWEN3_0_6B,
    "qwen3_1_7b": replace(_QWEN3_0_6B, hidden_size=2048, intermediate_size=6144),
    "qwen3_4b": replace(_QWEN3_0_6B, num_layers=36, hidden_size=2560, intermediate_size=9728, num_heads=32),
    "qwen3_8b": _QWEN3_8B,
    "qwen3_14b": replace(_QWEN3_8B, num_layers=40, hidden_size=5120, intermediate_size=17_408, num_heads=40),
    "qwen3_32b": replace(_QWEN3_8B, num_layers=64, hidden_size=5120, intermediate_size=25_600, num_heads=64),
    "qwen2_5_0_5b": DecoderConfig(
        vocab_size=151_936, num_layers=24, hidden_size=896, intermediate_size=4864, num_heads=14, num_kv_heads=2, head_dim=64,
        max_seq_len=32_768, rope_base=1e6, norm_eps=1e-6, tied_head=True, qk_norm=False, qkv_bias=True,
    ),  # fmt: skip
    "tinyllama_1_1b": DecoderConfig(
        vocab_size=32_000, num_layers=22, hidden_size=2048, intermediate_size=5632, num_heads=32, num_kv_heads=4, head_dim=64,
        max_seq_len=2048, rope_base=1e4, norm_eps=1e-5, tied_head=False, qk_norm=False, qkv_bias=False,
    ),  # fmt: skip
}


def preset(name: str) -> DecoderConfig:
    """The named size. Raises ValueError listing the names; change a field with dataclasses.replace."""
    if name not in PRESETS:
        raise ValueError(f"preset: got {name!r}; expected one of {sorted(PRESETS)}")
    return PRESETS[name]
