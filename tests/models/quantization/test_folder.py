"""models/quantization/folder.py: what is written, what is read back, and what is refused (EXP-01, EXP-03, EXP-04, EXP-06, EXP-07)."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from models.architectures.decoder import Decoder, DecoderConfig, init_weights
from models.quantization import folder as exported
from models.storage import read_tensors, write_tensors

END_IDS, PAD = [2, 0], 0


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    """The files that matter here: an end token with its id."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": 2, "content": "<|im_end|>"}]}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": "{{ messages }}"}))
    return folder


def decoder(*, tied_head: bool = True, seed: int = 0) -> Decoder:
    model = Decoder(DecoderConfig(
        vocab_size=19, num_layers=2, hidden_size=12, intermediate_size=18, num_heads=2, num_kv_heads=1, head_dim=6, max_seq_len=32,
        rope_base=10000.0, norm_eps=1e-6, tied_head=tied_head, qk_norm=True, qkv_bias=False))  # fmt: skip
    init_weights(model, seed)
    return model


def stored_names(path: Path) -> set[str]:
    with safe_open(path / "model.safetensors", framework="pt") as file:
        return set(file.keys())


@pytest.mark.parametrize("tied_head", [True, False])
@pytest.mark.parametrize("fmt", ["bf16", "int8"])
def test_read_back_equals_the_promised_rounding(tmp_path, tokenizer_folder, fmt, tied_head):
    """The loaded model holds exactly stored_values, and differs from the source only by the format's rounding."""
    model = decoder(tied_head=tied_head)
    exported.WRITERS[fmt](model, tmp_path / "out", tokenizer_folder, END_IDS, PAD)
    loaded, promised = exported.load(tmp_path / "out"), exported.stored_values(model, fmt)
    assert loaded.config == model.config
    assert loaded.state_dict().keys() == promised.keys() == model.state_dict().keys()
    for name, value in loaded.state_dict().items():
        assert value.dtype is torch.float32 and torch.equal(value, promised[name]), name
    tokens = torch.arange(19).reshape(1, 19)
    error = (loaded(tokens) - model(tokens)).abs().max()
    assert 0 < error < 0.05


@pytest.mark.parametrize("tied_head", [True, False])
@pytest.mark.parametrize("fmt", ["bf16", "int8"])
def test_exp_01_tensor_list_agrees_with_the_tie_flag(tmp_path, tokenizer_folder, fmt, tied_head):
    """EXP-01: a tied export has no head tensor, an untied one has it, and the config says which; the head is never quantised."""
    exported.WRITERS[fmt](decoder(tied_head=tied_head), tmp_path / "out", tokenizer_folder, END_IDS, PAD)
    names = stored_names(tmp_path / "out")
    assert ("lm_head.weight" in names) == (not tied_head)
    assert json.loads((tmp_path / "out/config.json").read_text())["tie_word_embeddings"] == tied_head
    packed = {name for name in names if name.endswith("weight_packed")}
    assert len(packed) == (14 if fmt == "int8" else 0)
    assert not any("lm_head" in name or "embed" in name or "norm" in name for name in packed)


def test_int8_codes_come_from_the_float32_weights(tmp_path, tokenizer_folder):
    """Quantising once, from full precision: a weight that bfloat16 would push over a code boundary keeps its code."""
    model = decoder()
    weight = model.model.layers[0].mlp.up_proj.weight
    with torch.no_grad():
        weight[0] = 0.0
        weight[0, 0] = 127.5  # scale exactly 1
        weight[0, 1] = 101.499  # code 101; its bfloat16 rounding 101.5 would become 102
    exported.write_int8(model, tmp_path / "out", tokenizer_folder, END_IDS, PAD)
    row = exported.load(tmp_path / "out").model.layers[0].mlp.up_proj.weight[0]
    assert row[:3].tolist() == [127.0, 101.0, 0.0]


def test_exp_06_zero_weights_export_and_load(tmp_path, tokenizer_folder):
    """EXP-06: a layer of zeros (an untrained residual branch) loads as zeros, and logits stay finite."""
    model = decoder()
    torch.nn.init.zeros_(model.model.layers[1].self_attn.o_proj.weight)
    exported.write_int8(model, tmp_path / "out", tokenizer_folder, END_IDS, PAD)
    loaded = exported.load(tmp_path / "out")
    assert (loaded.model.layers[1].self_attn.o_proj.weight == 0).all()
    assert torch.isfinite(loaded(torch.tensor([[1, 2, 3]]))).all()


def test_exp_03_a_used_folder_holds_only_the_last_export(tmp_path, tokenizer_folder):
    """EXP-03: leftovers of a sharded export and of another format are gone; the new weights are the ones that load."""
    out = tmp_path / "out"
    exported.write_int8(decoder(seed=1), out, tokenizer_folder, END_IDS, PAD)
    (out / "model-00001-of-00002.safetensors").write_bytes(b"old")
    (out / "model.safetensors.index.json").write_text("{}")
    newer = decoder(seed=2)
    exported.write_bf16(newer, out, tokenizer_folder, END_IDS, PAD)
    assert {path.name for path in out.iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}  # fmt: skip
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    assert torch.equal(exported.load(out).model.norm.weight, newer.model.norm.weight)
    assert torch.equal(exported.load(out).model.embed_tokens.weight, newer.model.embed_tokens.weight.bfloat16().float())


@pytest.mark.parametrize("fmt", ["bf16", "int8"])
def test_exp_04_end_tokens_and_greedy_default(tmp_path, tokenizer_folder, fmt):
    """EXP-04: both configs name the end of turn first and the end of text; generation is greedy unless asked otherwise."""
    exported.WRITERS[fmt](decoder(), tmp_path / "out", tokenizer_folder, END_IDS, PAD)
    generation = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert generation == {"do_sample": False, "eos_token_id": END_IDS, "pad_token_id": PAD}
    assert json.loads((tmp_path / "out/config.json").read_text())["eos_token_id"] == END_IDS


@pytest.mark.parametrize("fmt", ["bf16", "int8"])
def test_equal_models_give_equal_bytes(tmp_path, tokenizer_folder, fmt):
    for name in ("a", "b"):
        exported.WRITERS[fmt](decoder(), tmp_path / name, tokenizer_folder, END_IDS, PAD)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


@pytest.mark.parametrize("fmt", ["bf16", "int8"])
@pytest.mark.parametrize("lost", ["lm_head.weight", "model.layers.1.mlp.down_proj.weight"])
def test_exp_07_a_missing_tensor_is_named(tmp_path, tokenizer_folder, fmt, lost):
    """EXP-07: an untied folder without its head, or any folder without a layer's weight, does not load, and says what is missing."""
    out = tmp_path / "out"
    exported.WRITERS[fmt](decoder(tied_head=False), out, tokenizer_folder, END_IDS, PAD)
    tensors = read_tensors(out / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(lost)}
    assert len(kept) < len(tensors)
    write_tensors(out / "model.safetensors", kept, {"format": "pt"})
    with pytest.raises(ValueError, match=lost.replace(".", r"\.")):
        exported.load(out)


def test_non_finite_weights_leave_nothing_behind(tmp_path, tokenizer_folder):
    model = decoder()
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="1 non-finite"):
        exported.write_int8(model, tmp_path / "out", tokenizer_folder, END_IDS, PAD)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer"]


def test_another_quantisation_is_refused(tmp_path, tokenizer_folder):
    out = tmp_path / "out"
    exported.write_int8(decoder(), out, tokenizer_folder, END_IDS, PAD)
    config = json.loads((out / "config.json").read_text())
    config["quantization_config"]["quant_method"] = "gptq"
    (out / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="quant_method is 'gptq'"):
        exported.load(out)


def test_unknown_format_and_empty_folder_are_refused(tmp_path):
    with pytest.raises(ValueError, match="expected one of bf16, int8"):
        exported.stored_values(decoder(), "int3")
    with pytest.raises(ValueError, match="no config.json"):
        exported.load(tmp_path)
