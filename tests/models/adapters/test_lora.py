"""LoRA: equals the base at first, trains only itself, and merges back into plain weights with everything accounted for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from models.adapters.lora import LoraLinear, add_lora, merge_lora, trainable_names
from models.architectures.decoder import Decoder, DecoderConfig, init_weights
from models.losses.cross_entropy import cross_entropy_sum
from models.optimizers.adamw import adamw
from models.optimizers.guard import guarded_step
from models.precision import PrecisionLinear, apply_precision

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TOKENS = torch.arange(24).view(2, 12) * 7 % 48


def decoder(tied: bool = False) -> Decoder:
    config = DecoderConfig(
        vocab_size=48, num_layers=2, hidden_size=32, intermediate_size=64, num_heads=2, num_kv_heads=1, head_dim=16,
        max_seq_len=16, rope_base=10000.0, norm_eps=1e-6, tied_head=tied, qk_norm=True, qkv_bias=True,
    )  # fmt: skip
    model = Decoder(config)
    init_weights(model, 3)
    return model


def train(model: nn.Module, steps: int = 5, lr: float = 1e-2) -> None:
    optim = adamw(model, lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    for _ in range(steps):
        loss, count = cross_entropy_sum(model(TOKENS[:, :-1]), TOKENS[:, 1:])
        (loss / count).backward()
        assert not guarded_step(optim, model.parameters(), 1.0).skipped


def logits(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS)


def test_forward_and_delta_by_hand():
    """W = 0, A = (1 2), B = (3, 4)^T, alpha / r = 2: delta = 2 B A, and x = (1, 1) gives 2 * 3 * (3, 4)."""
    layer = LoraLinear(nn.Linear(2, 2, bias=False), rank=1, alpha=2.0, generator=torch.Generator())
    with torch.no_grad():
        layer.base.weight.zero_()
        layer.lora_A.copy_(torch.tensor([[1.0, 2.0]]))
        layer.lora_B.copy_(torch.tensor([[3.0], [4.0]]))
    assert layer(torch.ones(1, 2)).tolist() == [[18.0, 24.0]]
    assert layer.delta().tolist() == [[6.0, 12.0], [8.0, 16.0]]


def test_fresh_adapter_is_the_base_model_bit_for_bit():
    model = decoder()
    before = logits(model)
    add_lora(model, 4, 8.0, ALL, seed=0)
    assert torch.equal(logits(model), before)
    assert all(m.lora_A.abs().max() <= m.base.in_features**-0.5 and m.lora_A.std() > 0 for m in model.modules() if isinstance(m, LoraLinear))


def test_only_the_adapter_is_trainable_and_trained():
    model = decoder()
    add_lora(model, 4, 8.0, ("q_proj", "down_proj"), seed=0)
    names = trainable_names(model)
    assert len(names) == 2 * 2 * 2 and all(n.endswith(("lora_A", "lora_B")) for n in names)
    frozen = {n: p.clone() for n, p in model.named_parameters() if n not in names}
    train(model)
    assert all(torch.equal(p, frozen[n]) for n, p in model.named_parameters() if n in frozen)
    assert all(p.abs().sum() > 0 for n, p in model.named_parameters() if n.endswith("lora_B"))


def test_seed_decides_the_adapter_and_the_global_random_state_plays_no_part():
    def adapter(seed: int, global_seed: int) -> torch.Tensor:
        model = decoder()
        torch.manual_seed(global_seed)
        state = torch.get_rng_state()
        add_lora(model, 2, 4.0, ("q_proj",), seed=seed)
        assert torch.equal(torch.get_rng_state(), state)
        return torch.cat([p.flatten() for n, p in model.named_parameters() if n.endswith("lora_A")])

    assert torch.equal(adapter(1, 5), adapter(1, 6)) and not torch.equal(adapter(1, 5), adapter(2, 5))


@pytest.mark.parametrize("tied", [True, False])
def test_merge_keeps_the_logits_and_restores_the_plain_model(tied):
    model = decoder(tied)
    names = [n for n, _ in model.named_parameters()]
    add_lora(model, 4, 8.0, ALL, seed=0)
    train(model)
    before = logits(model)
    report = merge_lora(model)
    assert (logits(model) - before).abs().max() < 1e-5
    assert [n for n, _ in model.named_parameters()] == names
    assert all(type(m) is nn.Linear for m in model.modules() if isinstance(m, nn.Linear))
    assert all(p.requires_grad for p in model.parameters())
    assert len(report.merged) == 14 and len(report.adapters) == 28 and not report.trained_in_full and not report.unchanged
    assert "model.layers.1.mlp.down_proj.weight" in report.merged
    assert report.largest_change > 1e-4 and report.rounding_error < 1e-7


@pytest.mark.parametrize(("tied", "full", "expected"), [(False, ("lm_head",), "lm_head.weight"), (True, ("embed_tokens",), "model.embed_tokens.weight")])
def test_sft_02_layers_trained_in_full_are_kept_and_listed(tied, full, expected):
    model = decoder(tied)
    base = {n: p.clone() for n, p in model.named_parameters()}
    add_lora(model, 4, 8.0, ("q_proj", "v_proj"), seed=0, trained_in_full=full)
    trained = set(trainable_names(model))
    assert expected in trained
    train(model)
    before = logits(model)
    report = merge_lora(model)
    assert report.trained_in_full == (expected,)
    assert set(report.adapters) | set(report.trained_in_full) == trained
    assert (logits(model) - before).abs().max() < 1e-5
    changed = {n for n, p in model.named_parameters() if not torch.equal(p, base[n])}
    assert changed == {*report.merged, expected}


def test_sft_03_untrained_adapter_is_an_error_and_leaves_the_model():
    model = decoder()
    add_lora(model, 4, 8.0, ALL, seed=0)
    with pytest.raises(ValueError, match="14 adapters that change no weight"):
        merge_lora(model)
    assert any(isinstance(m, LoraLinear) for m in model.modules())


def gentle(dtype: torch.dtype) -> tuple[nn.Module, LoraLinear]:
    """Weights of 1 and an adapter that adds 2**-12 to each: float32 holds it, bfloat16 (steps of 2**-7) does not."""
    model = nn.Sequential(nn.Linear(16, 16, bias=False))
    nn.init.ones_(model[0].weight)
    model.to(dtype)
    add_lora(model, 1, 1.0, ("0",), seed=0)
    with torch.no_grad():
        model[0].lora_A.fill_(1.0)
        model[0].lora_B.fill_(2.0**-12)
    return model, model[0]


def test_sft_03_gentle_change_survives_in_float32_and_is_refused_in_bfloat16():
    model, _ = gentle(torch.float32)
    report = merge_lora(model)
    assert report.largest_change == 2.0**-12 and report.rounding_error == 0
    with pytest.raises(ValueError, match="below the weights' precision: merge into float32"):
        merge_lora(gentle(torch.bfloat16)[0])


def test_sft_03_rounding_is_measured_and_unchanged_layers_are_listed():
    model = nn.Sequential(gentle(torch.bfloat16)[1], gentle(torch.bfloat16)[1])
    with torch.no_grad():
        model[1].lora_B.fill_(2.0**-7 + 2.0**-12)
    report = merge_lora(model)
    assert report.unchanged == ("0.weight",) and report.merged == ("0.weight", "1.weight")
    assert report.largest_change == 2.0**-7 and report.rounding_error == 2.0**-12


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_sft_03_eight_bit_base_is_refused(dtype):
    model, layer = gentle(torch.float32)
    layer.base.weight = nn.Parameter(layer.base.weight.detach().to(dtype), requires_grad=False)
    with pytest.raises(ValueError, match=f"0.weight: got {dtype}.*quantize once, at export"):
        merge_lora(model)


@pytest.mark.parametrize("precision_first", [True, False])
def test_adapter_beside_low_precision_layers(precision_first):
    """FP8-01 too: the fresh B is all zeros. The base keeps its precision before, during and after the adapter."""
    model = decoder()
    if precision_first:
        apply_precision(model, "fp8_tensorwise")
    add_lora(model, 4, 8.0, ALL, seed=0)
    if not precision_first:
        apply_precision(model, "fp8_tensorwise")
    bases = [m.base for m in model.modules() if isinstance(m, LoraLinear)]
    assert len(bases) == 14 and all(isinstance(b, PrecisionLinear) for b in bases)
    start = logits(model)
    train(model)
    assert (logits(model) - start).abs().max() > 0.01
    apply_precision(model, "fp32")
    exact = logits(model)
    merge_lora(model)
    assert (logits(model) - exact).abs().max() < 1e-5
    assert not any(isinstance(m, PrecisionLinear) for m in model.modules())


def test_bad_requests_are_refused_with_nothing_changed():
    model = decoder()
    cases = [
        ((0, 8.0, ALL), "got rank=0"),
        ((4, 0.0, ALL), "alpha=0.0"),
        ((4, 8.0, ("q_proj", "query")), r"targets: got \['query'\], expected names among .*'q_proj'"),
        ((4, 8.0, ()), "targets: got none"),
        ((4, 8.0, ("norm",)), "targets: got"),
    ]
    for (rank, alpha, targets), message in cases:
        with pytest.raises(ValueError, match=message):
            add_lora(model, rank, alpha, targets, seed=0)
    with pytest.raises(ValueError, match=r"trained_in_full: got \['head'\]"):
        add_lora(model, 4, 8.0, ALL, seed=0, trained_in_full=("head",))
    with pytest.raises(ValueError, match="both as adapter targets and as trained in full"):
        add_lora(model, 4, 8.0, ALL, seed=0, trained_in_full=("q_proj",))
    assert all(p.requires_grad for p in model.parameters()) and not any(isinstance(m, LoraLinear) for m in model.modules())
    with pytest.raises(ValueError, match="without adapters"):
        merge_lora(model)
    add_lora(model, 4, 8.0, ("q_proj",), seed=0)
    with pytest.raises(ValueError, match="has adapters; merge them first"):
        add_lora(model, 4, 8.0, ("k_proj",), seed=0)
