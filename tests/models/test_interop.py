"""Hugging Face folders both ways: logit parity, bit-equal round trips, tied and untied heads, refusals (EXP-01, EXP-03, EXP-04, EXP-07)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from models.architectures.decoder import DecoderConfig
from models.architectures.presets import PRESETS
from models.interop import check_hf_folder, from_hf_config, from_hf_folder, generation_config, to_hf_config, to_hf_folder
from tests.models.toy import FAMILIES, TOY, random_tokens, toy_model

CONFIGS = {
    "qwen3": (transformers.Qwen3Config, {"head_dim": 16}),
    "qwen2": (transformers.Qwen2Config, {}),
    "llama": (transformers.LlamaConfig, {"head_dim": 16}),
}
IDS = {"eos_ids": [3, 4], "pad_id": 0}


def hugging_face_model(family: str, tied: bool, seed: int = 0) -> transformers.PreTrainedModel:
    """A randomly initialised model of the family, weights large enough for attention to be far from uniform, biases and gains not trivial."""
    make_fn, extra = CONFIGS[family]
    config = make_fn(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64, rope_parameters={"rope_type": "default", "rope_theta": 5e5}, rms_norm_eps=1e-5,
        tie_word_embeddings=tied, **extra,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator) * (0.15 if parameter.dim() == 2 else 0.3)
            parameter.copy_(drawn + 1 if name.endswith("norm.weight") else drawn)
    return model


def tokenizer_folder(path: Path, eos: str = "<|im_end|>") -> Path:
    """A tokenizer folder with the files and fields the export looks at; <|im_end|> is id 4."""
    path.mkdir()
    added = [{"id": 3, "content": "<|endoftext|>", "special": True}, {"id": 4, "content": "<|im_end|>", "special": True}]
    (path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    (path / "chat_template.jinja").write_text("{{ messages }}")
    (path / "notes.txt").write_text("not a tokenizer file")
    return path


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", CONFIGS)
def test_logit_parity_and_bit_equal_round_trip(tmp_path: Path, family: str, tied: bool) -> None:
    theirs = hugging_face_model(family, tied)
    theirs.save_pretrained(tmp_path / "in")
    ours = from_hf_folder(tmp_path / "in")
    tokens = random_tokens(3, 40)
    with torch.no_grad():
        expected, logits = theirs(tokens).logits, ours(tokens)
    assert expected.abs().max() > 1
    assert (logits - expected).abs().max() < 1e-5

    to_hf_folder(ours, tmp_path / "out", None, torch.float32, **IDS)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (tmp_path / "in" / "model.safetensors").read_bytes()
    before, after = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("in", "out"))
    for key in ("model_type", "architectures", "rope_parameters", "rms_norm_eps", "tie_word_embeddings", "head_dim", "dtype"):
        assert before.get(key) == after.get(key), key
    back, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values())
    with torch.no_grad():
        assert torch.equal(back(tokens).logits, expected)
    assert back.generation_config.eos_token_id == back.config.eos_token_id == [3, 4]


@pytest.mark.parametrize("family", CONFIGS)
def test_parity_at_far_positions(tmp_path: Path, family: str) -> None:
    """Parity at positions far from 0, where a wrong rotary base or layout shows most."""
    theirs = hugging_face_model(family, tied=True, seed=1)
    theirs.save_pretrained(tmp_path / "in")
    tokens, positions = random_tokens(2, 8), torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7], [40, 41, 42, 43, 44, 45, 46, 63]])
    with torch.no_grad():
        expected = theirs(tokens, position_ids=positions).logits
        assert (from_hf_folder(tmp_path / "in")(tokens, positions) - expected).abs().max() < 1e-5


def test_exp_01_a_new_process_loads_every_export_with_nothing_missing(tmp_path: Path) -> None:
    tokens = random_tokens(1, 12)
    for name, config in FAMILIES.items():
        model = toy_model(config)
        to_hf_folder(model, tmp_path / name, None, torch.float32, **IDS)
        assert ("lm_head.weight" in load_file(tmp_path / name / "model.safetensors")) == (not config.tied_head)
        with torch.no_grad():
            save_file({"tokens": tokens, "logits": model(tokens)}, tmp_path / name / "expected.st")
    program = """
import sys, torch
from pathlib import Path
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
for folder in sorted(Path(sys.argv[1]).iterdir()):
    expected = load_file(folder / "expected.st")
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), (folder, info)
    with torch.no_grad():
        difference = (model(expected["tokens"]).logits - expected["logits"]).abs().max().item()
    assert difference < 1e-5, (folder, difference)
    print(folder.name, difference)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == len(FAMILIES)


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ours_out_and_in_again(tmp_path: Path, config: DecoderConfig, dtype: torch.dtype) -> None:
    model = toy_model(config).to(dtype)
    for name in ("one", "two"):
        to_hf_folder(model, tmp_path / name, None, dtype, **IDS)
    back = from_hf_folder(tmp_path / "one")
    assert back.config == config
    for (name, value), (other, again) in zip(model.state_dict().items(), back.state_dict().items(), strict=True):
        assert name == other and value.dtype == again.dtype and torch.equal(value, again)
    for file in ("config.json", "generation_config.json", "model.safetensors"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_published_configs_survive_the_round_trip() -> None:
    for name, config in PRESETS.items():
        values = to_hf_config(config, eos_ids=[2], pad_id=None, bos_id=1, dtype=torch.bfloat16)
        assert from_hf_config(json.loads(json.dumps(values))) == config, name
        assert values["eos_token_id"] == 2 and values["dtype"] == "bfloat16"


def test_older_and_sparser_configs_are_understood() -> None:
    """rope_theta beside rope_scaling null, as written before the rope keys were joined; absent head counts and widths."""
    values = {"model_type": "llama", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
              "num_attention_heads": 4, "max_position_embeddings": 64, "rope_theta": 5e5, "rope_scaling": None}  # fmt: skip
    config = from_hf_config(values)
    assert (config.rope_base, config.num_kv_heads, config.head_dim, config.tied_head) == (5e5, 4, 8, False)
    assert from_hf_config({**values, "model_type": "qwen3"}).head_dim == 128


def shard(folder: Path) -> None:
    """Splits model.safetensors in two with an index, as large checkpoints are stored."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    weight_map = {}
    for index, part in enumerate((names[::2], names[1::2])):
        save_file({name: tensors[name] for name in part}, folder / f"model-{index}.safetensors")
        weight_map |= dict.fromkeys(part, f"model-{index}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "model.safetensors").unlink()


def test_sharded_folder_and_exp_07_a_missing_shard(tmp_path: Path) -> None:
    model = toy_model(FAMILIES["llama"])
    to_hf_folder(model, tmp_path / "hf", None, torch.float32, **IDS)
    shard(tmp_path / "hf")
    assert torch.equal(from_hf_folder(tmp_path / "hf").model.norm.weight, model.model.norm.weight)
    (tmp_path / "hf" / "model-1.safetensors").unlink()
    with pytest.raises(ValueError, match="in model-1.safetensors, which is not in the folder"):
        from_hf_folder(tmp_path / "hf")


def edit_tensors(folder: Path, change_fn: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change_fn(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_exp_07_missing_head_or_tensor_is_named(tmp_path: Path) -> None:
    to_hf_folder(toy_model(replace(TOY, tied_head=False)), tmp_path / "hf", None, torch.float32, **IDS)
    edit_tensors(tmp_path / "hf", lambda tensors: tensors.pop("lm_head.weight"))
    for read_fn in (from_hf_folder, check_hf_folder):
        with pytest.raises(ValueError, match=r"missing: \['lm_head.weight'\].*untied"):
            read_fn(tmp_path / "hf")
    to_hf_folder(toy_model(), tmp_path / "hf", None, torch.float32, **IDS)
    edit_tensors(tmp_path / "hf", lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(ValueError, match=r"missing: \['model.layers.1.mlp.up_proj.weight'\]"):
        from_hf_folder(tmp_path / "hf")


def test_unknown_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    to_hf_folder(toy_model(), tmp_path / "hf", None, torch.float32, **IDS)
    edit_tensors(tmp_path / "hf", lambda tensors: tensors.update({"model.layers.0.self_attn.o_proj.bias": torch.zeros(32)}))
    with pytest.raises(ValueError, match="unknown: .*o_proj.bias"):
        from_hf_folder(tmp_path / "hf")
    to_hf_folder(toy_model(), tmp_path / "hf", None, torch.float32, **IDS)
    edit_tensors(tmp_path / "hf", lambda tensors: tensors.update({"model.norm.weight": torch.ones(31)}))
    with pytest.raises(ValueError, match=r"model.norm.weight is \[31\], expected \[32\]"):
        from_hf_folder(tmp_path / "hf")


def test_exp_01_redundant_head_of_a_tied_model(tmp_path: Path) -> None:
    """Accepted when it equals the embedding, refused when it does not; stored rotary frequencies are ignored."""
    model = toy_model()
    to_hf_folder(model, tmp_path / "hf", None, torch.float32, **IDS)
    frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    edit_tensors(tmp_path / "hf", lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone(), **frequencies}))
    assert "lm_head.weight" not in from_hf_folder(tmp_path / "hf").state_dict()
    edit_tensors(tmp_path / "hf", lambda t: t["lm_head.weight"].view(-1)[5:6].add_(1))
    with pytest.raises(ValueError, match="lm_head.weight differs from the embedding"):
        from_hf_folder(tmp_path / "hf")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mixtral"}, r"model_type 'mixtral'; expected one of \['llama', 'qwen2', 'qwen3'\]"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'; expected 'silu'"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}}, "rope type 'yarn'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "rope type 'linear'"),
        ({"attention_bias": True}, "attention_bias True"),
        ({"mlp_bias": True}, "mlp_bias True"),
        ({"use_sliding_window": True}, "use_sliding_window True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"auto_map": {"AutoModel": "evil.py"}}, "auto_map"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_what_the_decoder_would_compute_differently_is_refused(change: dict[str, object], message: str) -> None:
    values = to_hf_config(TOY, eos_ids=[3], pad_id=0, bos_id=None, dtype=torch.float32)
    from_hf_config(values)
    with pytest.raises(ValueError, match=message):
        from_hf_config({**values, **change})


def test_incomplete_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no config.json"):
        from_hf_folder(tmp_path)
    to_hf_folder(toy_model(), tmp_path / "hf", None, torch.float32, **IDS)
    (tmp_path / "hf" / "model.safetensors").rename(tmp_path / "hf" / "pytorch_model.bin")
    with pytest.raises(ValueError, match="pickled .bin files are never read"):
        from_hf_folder(tmp_path / "hf")
    values = to_hf_config(TOY, eos_ids=[3], pad_id=0, bos_id=None, dtype=torch.float32)
    del values["num_hidden_layers"]
    with pytest.raises(ValueError, match=r"keys \['num_hidden_layers'\] are missing"):
        from_hf_config(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qkv_bias": True}, "qk_norm and qkv_bias both true"),
        ({"qk_norm": False, "qkv_bias": True, "head_dim": 16}, "Qwen2 has no head_dim of its own"),
        ({"qk_norm": False, "hidden_size": 30}, "hidden_size a multiple of num_heads"),
    ],
)
def test_shapes_no_family_can_express_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        to_hf_config(replace(TOY, **change), eos_ids=[3], pad_id=0, bos_id=None, dtype=torch.float32)


def test_token_ids_must_exist() -> None:
    for ids in ({"eos_ids": [61], "pad_id": 0, "bos_id": None}, {"eos_ids": [1], "pad_id": -1, "bos_id": None}):
        with pytest.raises(ValueError, match=r"expected within 0\.\.60"):
            to_hf_config(TOY, dtype=torch.float32, **ids)
    with pytest.raises(ValueError, match="no eos_ids"):
        to_hf_config(TOY, eos_ids=[], pad_id=0, bos_id=None, dtype=torch.float32)


def test_exp_03_and_tokenizer_files(tmp_path: Path) -> None:
    """A used folder holds only the last export; of the tokenizer folder only tokenizer files are taken, byte for byte."""
    source = tokenizer_folder(tmp_path / "tokenizer")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "model-00001-of-00003.safetensors").write_bytes(b"old")
    to_hf_folder(toy_model(), tmp_path / "hf", source, torch.bfloat16, **IDS, sampling={"temperature": 0.6, "top_k": 20})
    expected = ["chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(path.name for path in (tmp_path / "hf").iterdir()) == expected
    assert (tmp_path / "hf" / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    generation = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
    assert generation == {"eos_token_id": [3, 4], "pad_token_id": 0, "do_sample": True, "temperature": 0.6, "top_k": 20}


def test_exp_04_end_token_of_the_tokenizer_must_be_among_the_exported(tmp_path: Path) -> None:
    source = tokenizer_folder(tmp_path / "tokenizer")
    with pytest.raises(ValueError, match=r"ends with <\|im_end\|> \(id 4\), the export with ids \[3\]"):
        to_hf_folder(toy_model(), tmp_path / "hf", source, torch.float32, eos_ids=[3], pad_id=0)
    assert not (tmp_path / "hf").exists()
    (source / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"\['tokenizer.json'\] are missing"):
        to_hf_folder(toy_model(), tmp_path / "hf", source, torch.float32, **IDS)


def test_greedy_generation_config() -> None:
    assert generation_config([4], None, None, None) == {"eos_token_id": 4, "do_sample": False}
