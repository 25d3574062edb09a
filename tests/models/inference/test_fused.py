"""The fused forward pass equals Decoder's, for every family of the decoder, in prefill and step by step."""

from __future__ import annotations

import pytest
import torch

from models.adapters.lora import add_lora
from models.inference.fused import FusedDecoder, can_fuse
from models.layers.kv_cache import KVCache
from models.precision import apply_precision
from tests.models.toy import FAMILIES, random_tokens, toy_model

TOLERANCE = {"atol": 2e-5, "rtol": 1e-4}
"""float32 sums in another order, over two layers of matrices five times the usual size."""


@pytest.mark.parametrize("family", sorted(FAMILIES))
@torch.no_grad()
def test_prefill_and_steps_equal_the_full_forward(family):
    model = toy_model(FAMILIES[family])
    tokens_BT = random_tokens(3, 12, model.config)
    want = model.hidden(tokens_BT)
    fused = FusedDecoder(model)
    cache = KVCache(model.config, 3, 12, torch.float32, "cpu")
    positions_BT = torch.arange(12).expand(3, -1)
    torch.testing.assert_close(fused.hidden(tokens_BT[:, :7], positions_BT[:, :7], cache, None), want[:, :7], **TOLERANCE)
    for t in range(7, 12):
        torch.testing.assert_close(fused.hidden(tokens_BT[:, t : t + 1], positions_BT[:, t : t + 1], cache, None), want[:, t : t + 1], **TOLERANCE)


@torch.no_grad()
def test_rows_of_unequal_length_and_chosen_rows():
    model = toy_model()
    fused = FusedDecoder(model)
    tokens_BT = random_tokens(2, 9, model.config)
    cache = KVCache(model.config, 2, 9, torch.float32, "cpu")
    for row, length in ((1, 8), (0, 5)):
        fused.hidden(tokens_BT[row : row + 1, :length], torch.arange(length)[None], cache, torch.tensor([row]))
    step = fused.hidden(torch.stack([tokens_BT[0, 5:6], tokens_BT[1, 8:9]]), torch.tensor([[5], [8]]), cache, None)
    torch.testing.assert_close(step[0, 0], model.hidden(tokens_BT[:1])[0, 5], **TOLERANCE)
    torch.testing.assert_close(step[1, 0], model.hidden(tokens_BT[1:])[0, 8], **TOLERANCE)


def test_only_small_plain_float32_models_are_fused(monkeypatch):
    assert can_fuse(toy_model())
    assert not can_fuse(toy_model().to(torch.bfloat16))
    low, adapted = toy_model(), toy_model()
    apply_precision(low, "fp8_tensorwise")
    add_lora(adapted, rank=2, alpha=4.0, targets=("q_proj",), seed=0)
    assert not can_fuse(low) and not can_fuse(adapted)
    monkeypatch.setattr("models.inference.fused.LARGEST", 100)
    assert not can_fuse(toy_model())


def test_the_model_is_left_as_it_was():
    model = toy_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.inference_mode():
        FusedDecoder(model).hidden(random_tokens(1, 4), torch.arange(4)[None], KVCache(model.config, 1, 4, torch.float32, "cpu"), None)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
