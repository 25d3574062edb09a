"""models/quantization/compressed_checkpoint.py: tensor names, bytes equal to the library's compressor, refusals."""

import copy

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from torch import nn

from models.quantization import compressed_checkpoint


class Toy(nn.Module):
    """An embedding, two projections of awkward widths, a norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 10)
        self.up_proj = nn.Linear(10, 7, bias=True)
        self.down_proj = nn.Linear(7, 10, bias=False)
        self.norm = nn.LayerNorm(10)
        self.lm_head = nn.Linear(10, 11, bias=False)


@pytest.fixture
def toy() -> Toy:
    return Toy()


def test_head_embedding_and_norm_are_not_quantised(toy):
    assert compressed_checkpoint.linear_layers(toy) == ["up_proj", "down_proj"]


def test_stored_tensors(toy):
    stored = compressed_checkpoint.compress(toy.state_dict(), ["up_proj", "down_proj"], torch.bfloat16)
    assert set(stored) == {
        "embed.weight", "norm.weight", "norm.bias", "lm_head.weight", "up_proj.bias",
        "up_proj.weight_packed", "up_proj.weight_scale", "up_proj.weight_shape",
        "down_proj.weight_packed", "down_proj.weight_scale", "down_proj.weight_shape",
    }  # fmt: skip
    assert stored["up_proj.weight_packed"].shape == (7, 3)  # ceil(10 / 4) words
    assert stored["up_proj.weight_scale"].shape == (7, 1)
    assert stored["up_proj.weight_shape"].tolist() == [7, 10]
    assert {t.dtype for t in stored.values()} == {torch.bfloat16, torch.int32, torch.int64}


def test_config_is_valid_for_the_library_and_scheme_compresses_to_our_bytes(toy):
    """Parsed by the library, our config names the compressor whose output has our bytes, tensor by tensor."""
    config = QuantizationConfig.model_validate(compressed_checkpoint.quantization_config())
    scheme = config.config_groups["group_0"]
    compressor = BaseCompressor.get_value_from_registry(config.format)
    stored = compressed_checkpoint.compress(toy.state_dict(), ["up_proj", "down_proj"], torch.bfloat16)
    for name in ("up_proj", "down_proj"):
        module = {"weight": toy.state_dict()[f"{name}.weight"], "weight_scale": stored[f"{name}.weight_scale"]}
        theirs = compressor.compress(module, scheme)
        assert set(theirs) == {"weight_packed", "weight_scale", "weight_shape"}
        for part, tensor in theirs.items():
            ours = stored[f"{name}.{part}"]
            assert ours.dtype is tensor.dtype and torch.equal(ours, tensor), f"{name}.{part}"
        opened = compressor.decompress({p: stored[f"{name}.{p}"] for p in theirs}, scheme)["weight"]
        ours = compressed_checkpoint.decompress(stored, compressed_checkpoint.quantization_config(), torch.bfloat16)
        assert torch.equal(ours[f"{name}.weight"], opened)


def test_decompress_restores_names_and_keeps_the_rest(toy):
    state = toy.state_dict()
    opened = compressed_checkpoint.fake_quantize(state, ["up_proj", "down_proj"], torch.bfloat16)
    assert set(opened) == set(state)
    assert torch.equal(opened["embed.weight"], state["embed.weight"].bfloat16().float())
    error = (opened["up_proj.weight"] - state["up_proj.weight"]).abs().max()
    assert 0 < error <= state["up_proj.weight"].abs().max() / 127


def test_layer_without_weight_is_refused(toy):
    with pytest.raises(ValueError, match="gate_proj"):
        compressed_checkpoint.compress(toy.state_dict(), ["gate_proj"], torch.bfloat16)


def test_exp_07_missing_scale_is_named(toy):
    """EXP-07: a tensor that is absent stops the load and is named."""
    stored = compressed_checkpoint.compress(toy.state_dict(), ["up_proj"], torch.bfloat16)
    del stored["up_proj.weight_scale"]
    with pytest.raises(ValueError, match=r"up_proj lacks \['up_proj.weight_scale'\]"):
        compressed_checkpoint.decompress(stored, compressed_checkpoint.quantization_config(), torch.float32)


def test_foreign_config_is_refused(toy):
    stored = compressed_checkpoint.compress(toy.state_dict(), ["up_proj"], torch.bfloat16)
    config = copy.deepcopy(compressed_checkpoint.quantization_config())
    config["config_groups"]["group_0"]["weights"]["num_bits"] = 4
    with pytest.raises(ValueError, match="quantization_config.config_groups"):
        compressed_checkpoint.decompress(stored, config, torch.float32)
