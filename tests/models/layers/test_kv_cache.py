"""The cache: decoding in any pieces equals one full pass, for rows of unequal length, after compaction and after a rollback."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.architectures.decoder import Decoder
from models.layers.kv_cache import KVCache
from tests.models.toy import FAMILIES, TOY, random_tokens, toy_model

# float32 sums in another order; logits are of size 10.
CLOSE = {"atol": 2e-5, "rtol": 1e-5}


def new_cache(model: Decoder, batch: int, max_len: int = 40) -> KVCache:
    return KVCache(model.config, batch, max_len, torch.float32, "cpu")


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_prefill_then_steps_equal_one_pass(config) -> None:
    model, tokens = toy_model(config), random_tokens(3, 12, config)
    with torch.no_grad():
        full = model(tokens)
        cache = new_cache(model, 3)
        pieces = [model.decode(tokens[:, :7], None, cache)]
        pieces += [model.decode(tokens[:, t : t + 1], None, cache) for t in range(7, 12)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), full, **CLOSE)
    assert cache.lengths_B.tolist() == [12, 12, 12]


def test_right_padded_prompts_of_unequal_length() -> None:
    """Each row continues at its own length; the padding's keys are overwritten before anything sees them."""
    model, tokens, lengths = toy_model(), random_tokens(3, 16), torch.tensor([2, 9, 5])
    prompts = torch.where(torch.arange(9) < lengths[:, None], tokens[:, :9], 0)
    with torch.no_grad():
        full = model(tokens)
        cache = new_cache(model, 3, max_len=16)
        logits = model.decode(prompts, None, cache)
        for row, length in enumerate(lengths.tolist()):
            torch.testing.assert_close(logits[row, :length], full[row, :length], **CLOSE)
        cache.set_lengths(lengths)
        for _ in range(7):
            at = cache.lengths_B.clone()
            step = model.decode(tokens.gather(1, at[:, None]), at[:, None], cache)
            torch.testing.assert_close(step[:, 0], full[torch.arange(3), at], **CLOSE)


def test_keep_compacts_reorders_and_repeats_rows() -> None:
    model, tokens = toy_model(), random_tokens(3, 10)
    with torch.no_grad():
        full = model(tokens)
        cache = new_cache(model, 3)
        model.decode(tokens[:, :8], None, cache)
        cache.set_lengths([8, 4, 6])
        cache.keep([2, 0, 2])
        assert cache.batch == 3 and cache.lengths_B.tolist() == [6, 8, 6]
        step = model.decode(torch.stack((tokens[2, 6:7], tokens[0, 8:9], tokens[2, 6:7])), None, cache)
    torch.testing.assert_close(step[:, 0], torch.stack((full[2, 6], full[0, 8], full[2, 6])), **CLOSE)


def test_rows_fills_and_continues_part_of_the_cache() -> None:
    model, tokens = toy_model(), random_tokens(4, 10)
    with torch.no_grad():
        full = model(tokens)
        cache = new_cache(model, 4)
        model.decode(tokens[[3, 1], :6], None, cache, rows=[3, 1])
        assert cache.lengths_B.tolist() == [0, 6, 0, 6]
        model.decode(tokens[[0, 2], :2], None, cache, rows=[0, 2])
        more = model.decode(tokens[[1, 2]].gather(1, torch.tensor([[6, 7], [2, 3]])), None, cache, rows=torch.tensor([1, 2]))
    assert cache.lengths_B.tolist() == [2, 8, 4, 6]
    torch.testing.assert_close(more, torch.stack((full[1, 6:8], full[2, 2:4])), **CLOSE)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.lists(st.integers(0, 4), min_size=3, max_size=3), st.integers(0, 99))
def test_any_pieces_from_any_starts_equal_one_pass(pieces: list[int], starts: list[int], seed: int) -> None:
    """Rows start at different lengths (ragged), then take the same piece sizes."""
    model, tokens = toy_model(), random_tokens(3, 4 + sum(pieces), seed=seed)
    with torch.no_grad():
        full = model(tokens)
        cache = new_cache(model, 3)
        model.decode(tokens[:, :4], None, cache)
        cache.set_lengths(starts)
        for size in pieces:
            places = cache.lengths_B[:, None] + torch.arange(size)
            logits = model.decode(tokens.gather(1, places), None, cache)
            torch.testing.assert_close(logits, full.gather(1, places[..., None].expand(-1, -1, TOY.vocab_size)), **CLOSE)


def test_tokens_may_come_in_any_order_within_a_call() -> None:
    """The slot is the position, not the place in the call: the second row is passed backwards."""
    model, tokens = toy_model(), random_tokens(2, 5)
    positions = torch.stack((torch.arange(5), torch.arange(4, -1, -1)))
    with torch.no_grad():
        full = model(tokens)
        logits = model.decode(torch.stack((tokens[0], tokens[1].flip(0))), positions, new_cache(model, 2))
    torch.testing.assert_close(logits, torch.stack((full[0], full[1].flip(0))), **CLOSE)


def test_rollback_forgets_the_tokens_above() -> None:
    model, tokens = toy_model(), random_tokens(2, 9)
    with torch.no_grad():
        cache = new_cache(model, 2)
        model.decode(tokens, None, cache)
        cache.set_lengths([5, 5])
        again = model.decode(tokens[:, 5:6], None, cache)
        torch.testing.assert_close(again[:, 0], model(tokens[:, :6])[:, 5], **CLOSE)


def test_low_precision_cache_holds_its_own_dtype() -> None:
    model, tokens = toy_model(scale=1.0), random_tokens(2, 8)
    with torch.no_grad():
        cache = KVCache(model.config, 2, 8, torch.bfloat16, "cpu")
        model.decode(tokens[:, :6], None, cache)
        cache.set_lengths([6, 3])
        logits = model.decode(torch.stack((tokens[0, 6:7], tokens[1, 3:4])), None, cache)
    assert {key.dtype for key in cache.keys} == {torch.bfloat16}
    assert logits.dtype == torch.float32
    full = model(tokens)
    torch.testing.assert_close(logits[:, 0], torch.stack((full[0, 6], full[1, 3])), atol=0.05, rtol=0.05)


def test_refusals_name_the_remedy() -> None:
    model = toy_model()
    with pytest.raises(ValueError, match="max_seq_len=64"):
        new_cache(model, 1, max_len=65)
    with pytest.raises(ValueError, match="both >= 1"):
        new_cache(model, 0)
    cache = new_cache(model, 2, max_len=4)
    with pytest.raises(ValueError, match=r"0\.\.4; expected within 0\.\.3"):
        model.decode(random_tokens(2, 5), None, cache)
    assert cache.lengths_B.tolist() == [0, 0]
    with pytest.raises(ValueError, match=r"tokens \(3, 2\) for positions \(2, 2\)"):
        model.decode(random_tokens(3, 2), None, cache)
    with pytest.raises(ValueError, match="3 rows of positions; expected 2"):
        model.decode(random_tokens(3, 2), torch.zeros(3, 2, dtype=torch.int64), cache)
    with pytest.raises(ValueError, match="one per row"):
        cache.set_lengths([1, 2, 3])
