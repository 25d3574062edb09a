"""Weights in and out of Hugging Face folders: Qwen3, Qwen2 (and Qwen2.5), Llama.

In: a folder with config.json and safetensors files (one or sharded). Out: a Decoder; or, the other way, a folder that transformers,
vLLM, SGLang and llama.cpp load with no code of ours. Parameter names already agree, so tensors are copied unrenamed and bit for bit;
the work is in the configs, in the checks, and in refusing what the decoder cannot honour. No code from a folder is ever run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from models.architectures.decoder import Decoder, DecoderConfig
from models.checkpoint import build_decoder
from models.storage import publish_folder, read_tensors, write_json, write_tensors

ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}
FLAGS = {(True, False): "qwen3", (False, True): "qwen2", (False, False): "llama"}  # (qk_norm, qkv_bias) -> model_type
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER_REQUIRED = ("tokenizer.json", "tokenizer_config.json")
TOKENIZER_OPTIONAL = (
    "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json", "vocab.json", "merges.txt",
    "tokenizer.model",
)  # fmt: skip


def to_hf_config(
    config: DecoderConfig, *, eos_ids: Sequence[int], pad_id: int | None, bos_id: int | None, dtype: torch.dtype
) -> dict[str, Any]:
    """config.json of a Hugging Face folder. The family follows from the flags: QK-norm Qwen3, q/k/v biases Qwen2, neither Llama.

    Rope base and dtype are written under both their current and their older key, for loaders of either age. Raises ValueError for a
    shape no family can express or a token id outside the vocabulary.
    """
    family = FLAGS.get((config.qk_norm, config.qkv_bias))
    if family is None:
        raise ValueError("to_hf_config: got qk_norm and qkv_bias both true; expected at most one; no Hugging Face family has both")
    if family == "qwen2" and config.num_heads * config.head_dim != config.hidden_size:
        raise ValueError(
            f"to_hf_config: Qwen2 has no head_dim of its own; got {config.num_heads} heads x {config.head_dim}, hidden_size "
            f"{config.hidden_size}; expected their product to be the hidden size"
        )
    if family == "llama" and config.hidden_size % config.num_heads:
        raise ValueError(
            f"to_hf_config: Llama wants hidden_size a multiple of num_heads; got {config.hidden_size} and {config.num_heads}"
        )
    _check_ids(config, eos_ids, pad_id, bos_id)
    values: dict[str, Any] = {
        "architectures": [ARCHITECTURES[family]], "model_type": family, "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size, "intermediate_size": config.intermediate_size, "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads, "num_key_value_heads": config.num_kv_heads,
        "max_position_embeddings": config.max_seq_len, "rms_norm_eps": config.norm_eps, "rope_theta": config.rope_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base}, "tie_word_embeddings": config.tied_head,
        "hidden_act": "silu", "initializer_range": 0.02, "attention_dropout": 0.0, "use_cache": True,
        "eos_token_id": _one_or_list(eos_ids), "pad_token_id": pad_id, "bos_token_id": bos_id,
        "dtype": _dtype_name(dtype), "torch_dtype": _dtype_name(dtype),
    }  # fmt: skip
    if family != "qwen2":
        values |= {"head_dim": config.head_dim, "attention_bias": False}
    if family == "llama":
        values |= {"mlp_bias": False, "pretraining_tp": 1}
    else:
        values |= {"use_sliding_window": False, "sliding_window": None, "max_window_layers": config.num_layers}
    return values


def from_hf_config(values: Mapping[str, Any]) -> DecoderConfig:
    """Decoder shape from a Hugging Face config; anything the decoder would compute differently is a ValueError naming the key."""
    family = values.get("model_type")
    if family not in ARCHITECTURES:
        raise ValueError(f"config.json: got model_type {family!r}; expected one of {sorted(ARCHITECTURES)}")
    rope = dict(values.get("rope_parameters") or {})
    legacy = values.get("rope_scaling") or {}
    _expect("rope type", rope.get("rope_type", rope.get("type", legacy.get("rope_type", legacy.get("type", "default")))), "default")
    _expect("partial_rotary_factor", rope.get("partial_rotary_factor", values.get("partial_rotary_factor", 1.0)), 1.0)
    for key, expected in (("hidden_act", "silu"), ("mlp_bias", False), ("use_sliding_window", False), ("attention_bias", False)):
        _expect(key, values.get(key, expected), expected)
    _expect("layer_types", sorted(set(values.get("layer_types") or ["full_attention"])), ["full_attention"])
    for key in ("quantization_config", "auto_map"):
        _expect(key, values.get(key), None)
    needed = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
    missing = [key for key in needed if key not in values]
    if missing:
        raise ValueError(f"config.json: keys {missing} are missing; expected a {family} config")
    heads = values["num_attention_heads"]
    # Absent keys take the family's own published defaults.
    derived_head_dim = 128 if family == "qwen3" else values["hidden_size"] // heads
    return DecoderConfig(
        vocab_size=values["vocab_size"], num_layers=values["num_hidden_layers"], hidden_size=values["hidden_size"],
        intermediate_size=values["intermediate_size"], num_heads=heads, num_kv_heads=values.get("num_key_value_heads") or heads,
        head_dim=values.get("head_dim") or derived_head_dim, max_seq_len=values["max_position_embeddings"],
        rope_base=float(rope.get("rope_theta", values.get("rope_theta", 10000.0))), norm_eps=values.get("rms_norm_eps", 1e-6),
        tied_head=values.get("tie_word_embeddings", False), qk_norm=family == "qwen3", qkv_bias=family == "qwen2",
    )  # fmt: skip


def from_hf_folder(path: Path) -> Decoder:
    """A Decoder with the folder's weights, bit for bit, in their stored dtype, on CPU.

    Raises ValueError naming the file, key or tensor for anything missing, unknown, misshapen or unsupported. A tied model may carry a
    redundant head tensor when it equals the embedding.
    """
    config = check_hf_folder(path)
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(_locate(path).values())):
        tensors |= {name: value for name, value in read_tensors(path / file).items() if not _is_derived(name)}
    if config.tied_head and "lm_head.weight" in tensors:
        head = tensors.pop("lm_head.weight")
        if not torch.equal(head, tensors["model.embed_tokens.weight"]):
            raise ValueError(f"{path}: config says the head is tied, but lm_head.weight differs from the embedding; set tie_word_embeddings "
                             "to false if the head is its own")  # fmt: skip
    return build_decoder(config, tensors, str(path))


def check_hf_folder(path: Path) -> DecoderConfig:
    """Reads headers only: files present, tensor list and shapes as the config says (EXP-01, EXP-07). Returns the decoder's config."""
    file = path / "config.json"
    if not file.is_file():
        raise ValueError(f"{path}: got no config.json; expected a Hugging Face model folder")
    config = from_hf_config(json.loads(file.read_text(encoding="utf-8")))
    with torch.device("meta"):
        expected = {name: list(value.shape) for name, value in Decoder(config).state_dict().items()}
    found: dict[str, list[int]] = {}
    for name in sorted(set(_locate(path).values())):
        found |= _shapes(path / name)
    found = {name: shape for name, shape in found.items() if not _is_derived(name)}
    if config.tied_head and "lm_head.weight" in found:
        expected["lm_head.weight"] = expected["model.embed_tokens.weight"]
    missing, unknown = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if missing or unknown:
        hint = "; the config says the head is untied (tie_word_embeddings)" if "lm_head.weight" in missing else ""
        raise ValueError(f"{path}: tensors missing: {missing}, unknown: {unknown}{hint}; expected exactly those of config.json")
    wrong = [f"{name} is {found[name]}, expected {shape}" for name, shape in expected.items() if found[name] != shape]
    if wrong:
        raise ValueError(f"{path}: {'; '.join(wrong)}; config.json and the tensors belong to different models")
    return config


def to_hf_folder(
    model: Decoder, path: Path, tokenizer_folder: Path | None, dtype: torch.dtype, *, eos_ids: Sequence[int], pad_id: int | None,
    bos_id: int | None = None, sampling: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Writes a Hugging Face folder (config, generation config, weights in `dtype`, tokenizer files), checked, then swapped in whole.

    sampling: extra generation_config entries such as temperature, top_p, top_k; None means greedy. Whatever `path` held before is gone
    (EXP-03). The same model and arguments give the same bytes. Raises ValueError for missing tokenizer files, an end token that the
    tokenizer does not share (EXP-04), or a shape no family can express.
    """
    config = to_hf_config(model.config, eos_ids=eos_ids, pad_id=pad_id, bos_id=bos_id, dtype=dtype)
    if tokenizer_folder is not None:
        _check_tokenizer(tokenizer_folder, eos_ids)

    def fill(temporary: Path) -> None:
        write_json(temporary / "config.json", config)
        write_json(temporary / "generation_config.json", generation_config(eos_ids, pad_id, bos_id, sampling))
        if tokenizer_folder is not None:
            copy_tokenizer(tokenizer_folder, temporary)
        tensors = {name: value.detach().to(dtype) for name, value in model.state_dict().items()}
        write_tensors(temporary / WEIGHTS, tensors, {"format": "pt"})
        check_hf_folder(temporary)

    publish_folder(path, fill)


def generation_config(
    eos_ids: Sequence[int], pad_id: int | None, bos_id: int | None, sampling: Mapping[str, Any] | None
) -> dict[str, Any]:
    """generation_config.json: the stop and padding ids of config.json, and how to sample (greedy when sampling is None)."""
    values = {"eos_token_id": _one_or_list(eos_ids), "pad_token_id": pad_id, "bos_token_id": bos_id}
    values = {key: value for key, value in values.items() if value is not None}
    return {**values, "do_sample": sampling is not None, **(sampling or {})}


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copies the tokenizer's files, and nothing else, byte for byte."""
    for name in TOKENIZER_REQUIRED + TOKENIZER_OPTIONAL:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def _check_tokenizer(folder: Path, eos_ids: Sequence[int]) -> None:
    missing = [name for name in TOKENIZER_REQUIRED if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder}: tokenizer files {missing} are missing; expected a Hugging Face tokenizer folder")
    eos = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("eos_token")
    text = eos.get("content") if isinstance(eos, dict) else eos
    added = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")).get("added_tokens") or []
    ids = [token["id"] for token in added if token["content"] == text]
    if ids and ids[0] not in eos_ids:
        raise ValueError(f"{folder}: the tokenizer ends with {text} (id {ids[0]}), the export with ids {list(eos_ids)}; expected it among them")


def _check_ids(config: DecoderConfig, eos_ids: Sequence[int], pad_id: int | None, bos_id: int | None) -> None:
    if not eos_ids:
        raise ValueError("to_hf_config: got no eos_ids; expected at least one; without one, generation runs to the length limit")
    for value in [*eos_ids, *(value for value in (pad_id, bos_id) if value is not None)]:
        if not 0 <= value < config.vocab_size:
            raise ValueError(f"to_hf_config: got token id {value}; expected within 0..{config.vocab_size - 1}, the model's vocabulary")


def _one_or_list(ids: Sequence[int]) -> int | list[int]:
    return int(ids[0]) if len(ids) == 1 else [int(value) for value in ids]


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _expect(key: str, got: object, expected: object) -> None:
    if got != expected:
        raise ValueError(f"config.json: got {key} {got!r}; expected {expected!r}; this decoder does not implement anything else")


def _is_derived(name: str) -> bool:
    """Old Llama checkpoints store the rotary frequencies, which follow from the config."""
    return name.endswith("rotary_emb.inv_freq")


def _locate(path: Path) -> dict[str, str]:
    """Tensor name -> file for a sharded folder; a single file is listed under the empty name."""
    if (path / INDEX).is_file():
        files: dict[str, str] = json.loads((path / INDEX).read_text(encoding="utf-8"))["weight_map"]
    elif (path / WEIGHTS).is_file():
        return {"": WEIGHTS}
    else:
        raise ValueError(f"{path}: got neither {WEIGHTS} nor {INDEX}; expected safetensors weights (pickled .bin files are never read)")
    for name, file in sorted(files.items()):
        if Path(file).name != file or not (path / file).is_file():
            raise ValueError(f"{path}: {INDEX} puts tensor {name} in {file}, which is not in the folder; restore the file")
    return files


def _shapes(path: Path) -> dict[str, list[int]]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ValueError(f"{path}: not a readable safetensors file ({error}); download or export it again") from error
