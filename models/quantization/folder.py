"""Exported Hugging Face folders, one function per format, and the loader that reads them back.

In: a Decoder in float32 and its tokenizer's files. Out: a folder that other engines load; or, the other way, a Decoder whose
float32 weights are exactly the values the folder's stored form stands for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from models.architectures.decoder import Decoder
from models.checkpoint import build_decoder
from models.interop import WEIGHTS, from_hf_config, from_hf_folder, to_hf_folder
from models.quantization import compressed_checkpoint
from models.storage import publish_folder, read_tensors, write_json, write_tensors

STORED_DTYPE = torch.bfloat16
"""Type of every tensor that is not quantised, and of the scales: what engines compute in."""
QUANTIZATION = "quantization_config"


def write_bf16(model: Decoder, path: Path, tokenizer_folder: Path, eos_ids: Sequence[int], pad_id: int) -> None:
    """All weights rounded to bfloat16. Replaces what `path` held. Errors as in `to_hf_folder`."""
    to_hf_folder(model, path, tokenizer_folder, STORED_DTYPE, eos_ids=eos_ids, pad_id=pad_id)


def write_int8(model: Decoder, path: Path, tokenizer_folder: Path, eos_ids: Sequence[int], pad_id: int) -> None:
    """Linear layers as packed int8 with a scale per output channel, the rest in bfloat16. Replaces what `path` held.

    The codes are chosen from the float32 weights, not from their bfloat16 rounding. Errors as in `to_hf_folder`, and for weights
    that are not finite.
    """

    def fill(temporary: Path) -> None:
        to_hf_folder(model, temporary, tokenizer_folder, STORED_DTYPE, eos_ids=eos_ids, pad_id=pad_id)
        config = json.loads((temporary / "config.json").read_text(encoding="utf-8"))
        write_json(temporary / "config.json", {**config, QUANTIZATION: compressed_checkpoint.quantization_config()})
        layers = compressed_checkpoint.linear_layers(model)
        write_tensors(temporary / WEIGHTS, compressed_checkpoint.compress(model.state_dict(), layers, STORED_DTYPE), {"format": "pt"})

    publish_folder(path, fill)


WRITERS: Mapping[str, Callable[[Decoder, Path, Path, Sequence[int], int], None]] = {"bf16": write_bf16, "int8": write_int8}


def stored_values(model: Decoder, fmt: str) -> dict[str, Tensor]:
    """The float32 state dict that the export of `model` in a format stands for, computed without a file."""
    if fmt == "int8":
        return compressed_checkpoint.fake_quantize(model.state_dict(), compressed_checkpoint.linear_layers(model), STORED_DTYPE)
    if fmt == "bf16":
        return {name: value.detach().to(STORED_DTYPE).float() for name, value in model.state_dict().items()}
    raise ValueError(f"export format {fmt!r} does not exist; expected one of {', '.join(sorted(WRITERS))}")


def load(path: Path) -> Decoder:
    """A Decoder (CPU, float32) from an exported folder, quantised or not.

    Raises ValueError naming the file, tensor or key for a folder that is incomplete or of a kind `WRITERS` does not write.
    """
    file = path / "config.json"
    if not file.is_file():
        raise ValueError(f"{path}: got no config.json; expected a folder written by the export stage")
    values = json.loads(file.read_text(encoding="utf-8"))
    quantization = values.pop(QUANTIZATION, None)
    if quantization is None:
        return from_hf_folder(path).float()
    state = compressed_checkpoint.decompress(read_tensors(path / WEIGHTS), quantization, torch.float32)
    return build_decoder(from_hf_config(values), state, str(path))
