"""Decoder building blocks, one per file: norm, rope, attention, mlp, kv_cache. Tensors in, tensors out."""
