"""RL-08 and the temperature: log-probabilities of given tokens do not depend on where the padding is."""

from __future__ import annotations

import pytest
import torch

from models.architectures.decoder import Decoder, DecoderConfig, init_weights
from models.rl.logprobs import token_logprobs

VOCAB = 30


@pytest.fixture(scope="module")
def model() -> Decoder:
    config = DecoderConfig(
        vocab_size=VOCAB, num_layers=2, hidden_size=16, intermediate_size=24, num_heads=2, num_kv_heads=1, head_dim=8,
        max_seq_len=64, rope_base=10000.0, norm_eps=1e-6, tied_head=True, qk_norm=True, qkv_bias=False,
    )  # fmt: skip
    decoder = Decoder(config)
    init_weights(decoder, 0)
    with torch.no_grad():
        decoder.model.embed_tokens.weight.mul_(15)
    return decoder


def test_equals_the_log_softmax_of_the_full_logits(model):
    tokens_BT = torch.randint(0, VOCAB, (3, 9), generator=torch.Generator().manual_seed(0))
    mask_BT = torch.arange(9)[None] >= torch.tensor([1, 4, 8])[:, None]
    got = token_logprobs(model, tokens_BT, mask_BT, temperature=0.7)
    lp_BTV = (model(tokens_BT) / 0.7).log_softmax(-1)
    want = lp_BTV[:, :-1].gather(-1, tokens_BT[:, 1:, None]).squeeze(-1)
    torch.testing.assert_close(got[:, 1:][mask_BT[:, 1:]], want[mask_BT[:, 1:]], atol=1e-5, rtol=1e-5)
    assert torch.equal(got[~mask_BT], torch.zeros((~mask_BT).sum()))


def test_rl08_padding_side_does_not_matter(model):
    row = torch.randint(0, VOCAB, (6,), generator=torch.Generator().manual_seed(1)).tolist()
    wanted = [False, False, True, True, True, True]
    plain = token_logprobs(model, torch.tensor([row]), torch.tensor([wanted]), temperature=1.0)
    right = token_logprobs(model, torch.tensor([row + [0] * 5]), torch.tensor([wanted + [False] * 5]), temperature=1.0)
    left = token_logprobs(
        model,
        torch.tensor([[0] * 5 + row]),
        torch.tensor([[False] * 5 + wanted]),
        temperature=1.0,
        positions_BT=torch.tensor([[0] * 5 + list(range(6))]),
        segments_BT=torch.tensor([[1] * 5 + [0] * 6]),
    )
    torch.testing.assert_close(right[:, :6], plain, atol=1e-5, rtol=0)
    torch.testing.assert_close(left[:, 5:], plain, atol=1e-5, rtol=0)
    assert plain.sum() != 0


def test_gradients_reach_the_weights_through_wanted_tokens_only(model):
    tokens_BT = torch.randint(0, VOCAB, (2, 5), generator=torch.Generator().manual_seed(2))
    mask_BT = torch.tensor([[False, True, True, False, False], [False, False, False, False, False]])

    def gradient(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        lp = token_logprobs(model, tokens, mask, temperature=1.0).sum()
        return torch.autograd.grad(lp, model.model.layers[0].mlp.up_proj.weight)[0]

    torch.testing.assert_close(gradient(tokens_BT, mask_BT), gradient(tokens_BT[:1, :3], mask_BT[:1, :3]), atol=1e-6, rtol=1e-5)


def test_refusals(model):
    tokens_BT = torch.zeros(1, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match="temperature"):
        token_logprobs(model, tokens_BT, torch.zeros(1, 3), temperature=0.0)
    with pytest.raises(ValueError, match="position 0"):
        token_logprobs(model, tokens_BT, torch.ones(1, 3), temperature=1.0)
    with pytest.raises(ValueError, match="as the tokens"):
        token_logprobs(model, tokens_BT, torch.zeros(1, 4), temperature=1.0)
