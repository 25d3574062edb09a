"""The decoder: configs, names, packed isolation (DATA-05), supervised positions (DATA-06, LOSS-03), starting weights."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from models.architectures.decoder import Decoder, DecoderConfig, init_weights
from models.architectures.presets import preset
from tests.models.toy import FAMILIES, TOY, random_tokens, toy_model


def packed_row() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Documents A (6 tokens) and B (5 tokens) in one row: tokens, positions from 0 in each, segments."""
    tokens = random_tokens(1, 11)
    positions = torch.cat((torch.arange(6), torch.arange(5)))[None]
    return tokens, positions, torch.tensor([[0] * 6 + [1] * 5])


@pytest.mark.parametrize("backend", [None, SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], ids=str)
@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_data_05_packed_documents_do_not_see_each_other(config: DecoderConfig, backend: SDPBackend | None) -> None:
    model = toy_model(config)
    tokens, positions, segments = packed_row()
    changed = tokens.clone()
    changed[0, 2] = (changed[0, 2] + 1) % config.vocab_size
    with torch.no_grad(), sdpa_kernel(backend if backend is not None else list(SDPBackend.__members__.values())[1:4]):
        logits, moved = model(tokens, positions, segments), model(changed, positions, segments)
        alone = model(tokens[:, 6:])
    assert (logits[0, 6:] - moved[0, 6:]).abs().max() <= 1e-5
    assert (logits[0, 6:] - alone[0]).abs().max() <= 1e-5
    assert (logits[0, 2:6] - moved[0, 2:6]).abs().max() > 1e-2


def test_data_05_without_segments_the_row_is_one_document() -> None:
    """The check above can fail: leave the segments out and B moves with A."""
    model = toy_model()
    tokens, positions, _ = packed_row()
    changed = tokens.clone()
    changed[0, 2] = (changed[0, 2] + 1) % TOY.vocab_size
    with torch.no_grad():
        assert (model(tokens, positions)[0, 6:] - model(changed, positions)[0, 6:]).abs().max() > 1e-2


def test_data_05_gradients_stay_inside_the_document() -> None:
    model = toy_model(replace(TOY, tied_head=False))
    tokens = torch.arange(11)[None]
    _, positions, segments = packed_row()
    model(tokens, positions, segments)[0, 6:].square().sum().backward()
    rows = model.model.embed_tokens.weight.grad.abs().sum(dim=1)
    assert not rows[:6].any() and (rows[6:11] > 0).all()


def test_data_06_packed_loss_is_the_token_weighted_loss_of_the_documents() -> None:
    model = toy_model()
    tokens, positions, segments = packed_row()
    targets = torch.cat((tokens[0, 1:], torch.tensor([-100])))
    targets[5] = -100  # A's last token would be scored on B's first
    packed = F.cross_entropy(model(tokens, positions, segments)[0], targets, reduction="sum")
    apart = sum(F.cross_entropy(model(part)[0, :-1], part[0, 1:], reduction="sum") for part in (tokens[:, :6], tokens[:, 6:]))
    torch.testing.assert_close(packed, apart, atol=1e-4, rtol=1e-6)
    assert int((targets != -100).sum()) == 5 + 4


def test_loss_03_a_repeating_sequence_is_learnt_one_step_ahead() -> None:
    """Targets are shifted once, by the caller: trained on 1 2 3 4 1 2 3 4, greedy output continues it."""
    model = Decoder(replace(TOY, vocab_size=8))
    init_weights(model, 0)
    tokens = torch.tensor([[1, 2, 3, 4] * 4, [5, 6, 7, 5] * 4])
    optim = torch.optim.AdamW(model.parameters(), lr=3e-2)
    for _ in range(30):
        loss = F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        optim.zero_grad()
        loss.backward()
        optim.step()
    text = tokens[:1, :2]
    for _ in range(6):
        text = torch.cat((text, model(text)[:, -1:].argmax(dim=-1)), dim=1)
    assert text.tolist() == [[1, 2, 3, 4, 1, 2, 3, 4]]


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_logits_never_depend_on_later_tokens(config: DecoderConfig) -> None:
    model, tokens = toy_model(config), random_tokens(2, 9)
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % config.vocab_size
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5], atol=1e-5, rtol=0)
    assert ((before[:, 5:] - after[:, 5:]).abs().amax(dim=(0, 2)) > 1e-3).all()


def test_positions_default_to_a_count_from_zero_and_only_distances_matter() -> None:
    model, tokens = toy_model(), random_tokens(2, 9)
    positions = torch.arange(9).expand(2, 9)
    with torch.no_grad():
        assert torch.equal(model(tokens), model(tokens, positions))
        torch.testing.assert_close(model(tokens, positions + 17), model(tokens), atol=1e-4, rtol=1e-4)
        assert (model(tokens, positions * 2) - model(tokens)).abs().max() > 1e-2


def test_parameter_names_and_the_absent_head() -> None:
    names = set(Decoder(TOY).state_dict())
    assert {"model.embed_tokens.weight", "model.norm.weight", "model.layers.1.self_attn.q_norm.weight"} <= names
    assert "lm_head.weight" not in names
    untied = Decoder(replace(TOY, tied_head=False, qk_norm=False, qkv_bias=True)).state_dict()
    assert {"lm_head.weight", "model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.v_proj.bias"} <= set(untied)
    assert not {name for name in untied if "q_norm" in name or name.endswith("o_proj.bias")}


def test_tied_head_is_the_embedding() -> None:
    model = toy_model()
    assert model.head_weight is model.model.embed_tokens.weight
    hidden = torch.randn(3, TOY.hidden_size)
    assert torch.equal(model.head(hidden), hidden @ model.model.embed_tokens.weight.T)


def test_bfloat16_weights_give_float32_logits_close_to_full_precision() -> None:
    model, tokens = toy_model(scale=1.0), random_tokens(2, 8)
    with torch.no_grad():
        full = model(tokens)
        low = model.bfloat16()(tokens, None, torch.zeros(2, 8, dtype=torch.int64))
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, full, atol=0.02, rtol=0.05)


def test_init_is_decided_by_the_seed_alone() -> None:
    first, second, other = Decoder(TOY), Decoder(TOY), Decoder(TOY)
    torch.manual_seed(5)
    init_weights(first, 3)
    before = torch.get_rng_state()
    init_weights(second, 3)
    assert torch.equal(torch.get_rng_state(), before)
    init_weights(other, 4)
    for (name, one), two, three in zip(first.named_parameters(), second.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two), name
        assert torch.equal(one, three) == name.endswith("norm.weight"), name


def test_init_spread() -> None:
    """Standard deviation 0.02, residual outputs 0.02 / sqrt(2 layers); norms 1, biases 0."""
    model = Decoder(replace(preset("debug"), qkv_bias=True))
    init_weights(model, 0)
    weights = dict(model.named_parameters())
    assert abs(weights["model.embed_tokens.weight"].std().item() - 0.02) < 5e-4
    assert abs(weights["model.layers.0.mlp.down_proj.weight"].std().item() - 0.01) < 5e-4
    assert abs(weights["model.layers.1.self_attn.o_proj.weight"].std().item() - 0.01) < 5e-4
    assert (weights["model.layers.0.input_layernorm.weight"] == 1).all() and not weights["model.layers.0.self_attn.k_proj.bias"].any()


def test_too_long_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="65 tokens; expected at most max_seq_len=64"):
        toy_model()(random_tokens(1, 65))


def test_config_round_trip_through_json() -> None:
    for config in FAMILIES.values():
        assert DecoderConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_kv_heads": 3}, "num_heads=4, num_kv_heads=3"),
        ({"head_dim": 7}, "head_dim: got 7"),
        ({"vocab_size": 0}, "vocab_size: got 0"),
        ({"num_layers": 2.0}, "num_layers: got 2.0"),
        ({"num_layers": True}, "num_layers: got True"),
        ({"norm_eps": 0.0}, "norm_eps"),
        ({"rope_base": float("nan")}, "rope_base"),
        ({"tied_head": "false"}, "tied_head: got 'false'"),
    ],
)
def test_config_refuses_what_cannot_work(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DecoderConfig(**{**asdict(TOY), **change})


def test_config_refuses_unknown_and_missing_keys() -> None:
    values = TOY.to_dict()
    values["dropout"] = values.pop("qk_norm")
    with pytest.raises(ValueError, match=r"unknown keys \['dropout'\], missing keys \['qk_norm'\]"):
        DecoderConfig.from_dict(values)
