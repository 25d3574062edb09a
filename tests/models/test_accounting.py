"""Accounting: counts against real modules, FLOPs against torch's counter and a hand sum, bytes against what autograd keeps."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from models.accounting import (
    activation_bytes,
    flops_per_token,
    forward_flops_per_token,
    kv_cache_bytes,
    memory_estimate,
    num_params,
)
from models.architectures.decoder import Decoder
from models.layers.kv_cache import KVCache
from tests.models.toy import FAMILIES, TOY, random_tokens, toy_model


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_parameters_equal_the_module(config) -> None:
    assert num_params(config) == sum(parameter.numel() for parameter in Decoder(config).parameters())


def test_flops_by_hand() -> None:
    """TOY: per layer q and o 2*32*32, k and v 2*32*16, mlp 3*32*48; head 61*32; attention 4*2*4*8*seq_len."""
    matrices = 2 * (2 * 1024 + 2 * 512 + 3 * 1536) + 61 * 32
    assert forward_flops_per_token(TOY, 10) == 2 * matrices + 4 * 2 * 32 * 10
    assert flops_per_token(TOY, 10) == 3 * forward_flops_per_token(TOY, 10)


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_matrix_flops_equal_torchs_count(config) -> None:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        toy_model(config)(random_tokens(2, 6, config))
    products = sum(count for op, count in counter.get_flop_counts()["Global"].items() if "mm" in str(op))
    assert products == 2 * 6 * forward_flops_per_token(config, 0)


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("packed", [True, False])
def test_activation_bytes_are_what_autograd_keeps(config, packed: bool) -> None:
    model, tokens = toy_model(config), random_tokens(2, 24, config)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    segments = torch.arange(24).expand(2, 24) // 10 if packed else None
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = model.hidden(tokens, torch.arange(24).repeat(2, 1) if packed else None, segments)
    keep(hidden)
    keep(tokens)
    found = sum(tensor.untyped_storage().nbytes() for pointer, tensor in kept.items() if pointer not in weights)
    assert found == activation_bytes(config, rows=2, seq_len=24, packed=packed, element_bytes=4)


def test_memory_parts_add_up() -> None:
    parts = memory_estimate(TOY, rows=3, seq_len=16)
    assert parts["weights"] == parts["gradients"] == 4 * num_params(TOY) and parts["optimizer"] == 8 * num_params(TOY)
    assert parts["logits"] == 3 * 3 * 16 * 61 * 4
    assert parts["total"] == sum(parts.values()) - parts["total"]
    assert memory_estimate(TOY, rows=3, seq_len=16, chunked_loss=True)["total"] == parts["total"] - parts["logits"]


def test_cache_bytes_equal_the_cache() -> None:
    cache = KVCache(TOY, 3, 20, torch.bfloat16, "cpu")
    assert kv_cache_bytes(TOY, 3, 20, 2) == sum(store.nbytes for store in cache.keys + cache.values)
