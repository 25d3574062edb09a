"""Parameter counts of the published sizes, exact, on the meta device."""

from __future__ import annotations

import pytest
import torch

from models.accounting import num_params, num_params_without_embeddings
from models.architectures.decoder import Decoder
from models.architectures.presets import PRESETS, preset

PUBLISHED = {  # total, without embeddings and head
    "qwen3_0_6b": (596_049_920, 440_467_456),
    "qwen3_1_7b": (1_720_574_976, 1_409_410_048),
    "qwen3_4b": (4_022_468_096, 3_633_511_936),
    "qwen3_8b": (8_190_735_360, 6_946_075_648),
    "qwen3_14b": (14_768_307_200, 13_212_482_560),
    "qwen3_32b": (32_762_123_264, 31_206_298_624),
    "qwen2_5_0_5b": (494_032_768, 357_898_112),
    "tinyllama_1_1b": (1_100_048_384, 968_976_384),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts(name: str) -> None:
    config = preset(name)
    with torch.device("meta"):
        model = Decoder(config)
    total = sum(parameter.numel() for parameter in model.parameters())
    outside = sum(p.numel() for n, p in model.named_parameters() if "embed_tokens" in n or "lm_head" in n)
    assert (total, total - outside) == PUBLISHED[name]
    assert (num_params(config), num_params_without_embeddings(config)) == PUBLISHED[name]


def test_every_published_size_is_checked() -> None:
    assert set(PUBLISHED) | {"debug"} == set(PRESETS)


def test_unknown_name_lists_the_names() -> None:
    with pytest.raises(ValueError, match="qwen3_0_6b"):
        preset("qwen3")
