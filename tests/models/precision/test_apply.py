"""Switching a model's precision: which layers, same Parameters, refusals, and a training run in each precision."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from models.architectures.decoder import Decoder, DecoderConfig, init_weights
from models.losses.cross_entropy import cross_entropy_sum
from models.optimizers.adamw import adamw
from models.optimizers.guard import guarded_step
from models.precision import PrecisionLinear, apply_precision, end_blocks, follow_optimizer

NAMES = ["fp32", "bf16", "fp8_tensorwise", "fp8_rowwise", "fp8_blockwise", "mxfp8", "fp8_delayed", "moss"]


def decoder(tied: bool) -> Decoder:
    model = Decoder(
        DecoderConfig(
            vocab_size=64, num_layers=2, hidden_size=32, intermediate_size=64, num_heads=2, num_kv_heads=1, head_dim=16,
            max_seq_len=32, rope_base=10000.0, norm_eps=1e-6, tied_head=tied, qk_norm=True, qkv_bias=False,
        )
    )  # fmt: skip
    init_weights(model, 0)
    return model


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("precision", ["bf16", "fp8_tensorwise"])
def test_block_layers_are_converted_and_the_head_is_not(precision, tied):
    model = decoder(tied)
    before = dict(model.named_parameters())
    apply_precision(model, precision)
    converted = [name for name, m in model.named_modules() if isinstance(m, PrecisionLinear)]
    assert len(converted) == 2 * 7
    assert not any("lm_head" in name or "embed" in name for name in converted)
    after = dict(model.named_parameters())
    assert list(after) == list(before) and all(after[name] is before[name] for name in before)


def test_fp32_is_the_identity_and_the_way_back():
    model = decoder(False)
    modules = list(model.modules())
    apply_precision(model, "fp32")
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    tokens = torch.arange(16).view(2, 8)
    plain = model(tokens)
    apply_precision(model, "fp8_tensorwise")
    assert not torch.equal(model(tokens), plain)
    apply_precision(model, "fp32")
    assert torch.equal(model(tokens), plain)
    assert not any(isinstance(m, PrecisionLinear) for m in model.modules())


def test_changing_from_one_low_precision_to_another():
    model = nn.Sequential(nn.Linear(32, 32))
    x = torch.randn(4, 32)
    apply_precision(model, "bf16")
    bf16 = model(x)
    apply_precision(model, "fp8_tensorwise")
    assert not torch.equal(model(x), bf16)
    apply_precision(model, "bf16")
    assert torch.equal(model(x), bf16)


def test_layer_used_twice_stays_one_layer():
    shared = nn.Linear(32, 32)
    model = nn.ModuleDict({"a": nn.Sequential(shared), "b": nn.Sequential(shared)})
    apply_precision(model, "fp8_tensorwise")
    assert model["a"][0] is model["b"][0] and isinstance(model["a"][0], PrecisionLinear)


def test_layer_tied_to_an_embedding_under_any_name_is_left_alone():
    model = nn.ModuleDict({"table": nn.Embedding(32, 32), "out": nn.Linear(32, 32, bias=False), "mid": nn.Linear(32, 32)})
    model["out"].weight = model["table"].weight
    apply_precision(model, "fp8_tensorwise")
    assert type(model["out"]) is nn.Linear and isinstance(model["mid"], PrecisionLinear)


@pytest.mark.parametrize(("features", "side"), [((24, 32), "in_features=24"), ((32, 40), "out_features=40")])
def test_features_off_the_grid_are_refused_with_nothing_changed(features, side):
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(*features))
    with pytest.raises(ValueError, match=f"{side}, expected a multiple of 16; nearest above"):
        apply_precision(model, "fp8_tensorwise")
    assert all(type(m) is nn.Linear for m in model)
    apply_precision(model, "bf16")


def test_unknown_name_and_model_without_layers_are_refused():
    with pytest.raises(ValueError, match="expected one of fp32, bf16, fp8_tensorwise"):
        apply_precision(decoder(True), "FP8")
    with pytest.raises(ValueError, match="without nn.Linear children"):
        apply_precision(nn.Sequential(nn.Embedding(4, 4)), "bf16")


def test_excluded_layers_stay_or_become_plain():
    model = decoder(False)
    apply_precision(model, "moss")
    assert end_blocks(model, 1, 0) == ("model.layers.0.*",) and end_blocks(model, 0, 1) == ("model.layers.1.*",)
    apply_precision(model, "mxfp8", exclude=(*end_blocks(model, 1, 0), "*.down_proj"))
    low = [name for name, m in model.named_modules() if isinstance(m, PrecisionLinear)]
    assert len(low) == 6 and all(name.startswith("model.layers.1.") and "down_proj" not in name for name in low)
    with pytest.raises(ValueError, match="exclude patterns .'layers.9..'. that fit no layer, expected names such as 'model.layers"):
        apply_precision(model, "mxfp8", exclude=("layers.9.*",))
    with pytest.raises(ValueError, match="without nn.Linear children"):
        apply_precision(model, "mxfp8", exclude=end_blocks(model, 1, 1))
    with pytest.raises(ValueError, match="sum of at most 2 blocks"):
        end_blocks(model, 2, 1)
    with pytest.raises(ValueError, match="got a model with 0 outermost lists"):
        end_blocks(nn.Sequential(nn.Linear(32, 32)), 1, 0)


def train(precision: str, steps: int = 30) -> tuple[float, Decoder]:
    """Learn the successor of each token in a fixed cycle."""
    model = decoder(False)
    apply_precision(model, precision)
    optim = adamw(model, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
    follow_optimizer(model, optim)
    tokens = (torch.arange(25) * 5 % 64).repeat(2, 1)
    for _ in range(steps):
        loss_sum, count = cross_entropy_sum(model(tokens[:, :-1]), tokens[:, 1:])
        (loss_sum / count).backward()
        assert not guarded_step(optim, model.parameters(), 1.0).skipped
    return loss_sum.item() / int(count), model


def test_a_small_decoder_learns_equally_well_in_every_precision():
    losses = {name: train(name)[0] for name in NAMES}
    assert all(loss < 0.3 for loss in losses.values()), losses
    assert len(set(losses.values())) == len(NAMES)


@pytest.mark.parametrize("precision", ["fp8_tensorwise", "fp8_delayed", "moss"])
def test_training_in_fp8_is_reproducible_bit_for_bit(precision):
    (first, a), (second, b) = train(precision, 5), train(precision, 5)
    assert first == second
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
