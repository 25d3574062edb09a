"""Weight-only int8 checkpoints in compressed-tensors "pack-quantized" form, which transformers, vLLM and SGLang load.

In: a float state dict with Hugging Face names. Out: the tensors to store and the ``quantization_config`` to put in config.json.
Each quantised layer ``<name>.weight`` becomes ``<name>.weight_packed`` (int32 words), ``<name>.weight_scale`` (out, 1) and
``<name>.weight_shape`` (int64 [out, in]); every other tensor is stored as it is, rounded to the checkpoint's dtype.
The output head, embeddings and norms are never quantised: they are a small part of a large model and the most sensitive one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from models.quantization import int8, packing

QUANT_METHOD = "compressed-tensors"
FORMAT = "pack-quantized"
HEAD = "lm_head"
PACKED, SCALE, SHAPE = ".weight_packed", ".weight_scale", ".weight_shape"


def linear_layers(model: nn.Module, ignore: Sequence[str] = (HEAD,)) -> list[str]:
    """Names of the linear layers to quantise, in the order of the model: all of ``nn.Linear`` (subclasses too) but ``ignore``."""
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name not in ignore]


def quantization_config(ignore: Sequence[str] = (HEAD,)) -> dict[str, object]:
    """The ``quantization_config`` of config.json for what ``compress`` writes: int8, symmetric, per output channel, weights only."""
    weights = {"num_bits": int8.NUM_BITS, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None, "format": FORMAT}
    return {
        "quant_method": QUANT_METHOD,
        "format": FORMAT,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(ignore),
    }


def compress(state: Mapping[str, Tensor], layers: Sequence[str], dtype: torch.dtype) -> dict[str, Tensor]:
    """Tensors to store for a model whose ``layers`` are quantised offline; scales and all other tensors are in ``dtype``.

    Raises ValueError when a named layer has no ``<layer>.weight`` in ``state``, or when a weight is not finite.
    """
    missing = [name for name in layers if f"{name}.weight" not in state]
    if missing:
        raise ValueError(f"layers to quantise without a weight in the state dict: {missing}; expected names out of {sorted(state)}")
    quantised = {f"{name}.weight" for name in layers}
    stored = {name: tensor.detach().to(dtype).contiguous() for name, tensor in state.items() if name not in quantised}
    for name in layers:
        weight = int8.quantize(state[f"{name}.weight"], scale_dtype=dtype)
        stored[name + PACKED] = packing.pack(weight.codes_OI, int8.NUM_BITS)
        stored[name + SCALE] = weight.scale_O1.contiguous()
        stored[name + SHAPE] = torch.tensor(weight.codes_OI.shape, dtype=torch.int64)
    return stored


def decompress(stored: Mapping[str, Tensor], config: Mapping[str, object], dtype: torch.dtype) -> dict[str, Tensor]:
    """The float state dict (``dtype``) a loader computes with, from stored tensors and their ``quantization_config``.

    Raises ValueError for a config that ``quantization_config`` does not write, or a layer with one of its three tensors missing.
    """
    check_config(config)
    layers = sorted({name.rpartition(".")[0] for name in stored if name.endswith((PACKED, SCALE, SHAPE))})
    state = {name: tensor.to(dtype) for name, tensor in stored.items() if not name.endswith((PACKED, SCALE, SHAPE))}
    for name in layers:
        missing = [name + part for part in (PACKED, SCALE, SHAPE) if name + part not in stored]
        if missing:
            raise ValueError(f"quantised layer {name} lacks {missing}; expected all of {PACKED}, {SCALE}, {SHAPE}: export again")
        num_cols = int(stored[name + SHAPE][1])
        codes_OI = packing.unpack(stored[name + PACKED], int8.NUM_BITS, num_cols)
        state[f"{name}.weight"] = int8.dequantize(int8.Int8Weight(codes_OI=codes_OI, scale_O1=stored[name + SCALE]), dtype)
    return state


def check_config(config: Mapping[str, object]) -> None:
    """Refuse a ``quantization_config`` other than our own kind, naming what differs; the ignore list is free."""
    expected = quantization_config()
    for key in ("quant_method", "format", "quantization_status", "config_groups"):
        if config.get(key) != expected[key]:
            raise ValueError(
                f"quantization_config.{key} is {config.get(key)!r}; this loader reads {expected[key]!r} only: load the folder with "
                "transformers, or export again"
            )


def fake_quantize(state: Mapping[str, Tensor], layers: Sequence[str], dtype: torch.dtype) -> dict[str, Tensor]:
    """The float32 values that the stored form of ``state`` stands for: ``compress`` then ``decompress``, without a file."""
    return decompress(compress(state, layers, dtype), quantization_config(), torch.float32)
