"""Cross-entropy sums: hand-worked values, the chunked twin, packing and shifting cases."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.architectures.decoder import Decoder, DecoderConfig, init_weights
from models.losses.cross_entropy import IGNORE, chunked_cross_entropy_sum, cross_entropy_sum
from models.optimizers.adamw import adamw
from models.optimizers.guard import guarded_step


def test_by_hand():
    """Uniform over 4 gives ln 4; logits (ln 3, 0) give target 0 probability 3/4; the ignored position counts for nothing."""
    logits = torch.tensor([[[0.0] * 4, [math.log(3), 0.0, -math.inf, -math.inf], [9.0, 1.0, 2.0, 3.0]]])
    loss, count = cross_entropy_sum(logits, torch.tensor([[2, 0, IGNORE]]))
    assert loss.item() == pytest.approx(math.log(4) + math.log(4 / 3), abs=1e-6)
    assert count.item() == 2 and count.dtype == torch.int64


def test_bfloat16_logits_are_scored_in_float32():
    logits = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    loss, _ = cross_entropy_sum(logits, torch.zeros(2, 3, dtype=torch.long))
    assert loss.dtype == torch.float32
    assert loss == cross_entropy_sum(logits.float(), torch.zeros(2, 3, dtype=torch.long))[0]


def test_nothing_supervised_is_zero_with_zero_gradients():
    hidden = torch.randn(2, 3, 4, requires_grad=True)
    weight = torch.randn(5, 4, requires_grad=True)
    targets = torch.full((2, 3), IGNORE)
    for loss, count in (
        cross_entropy_sum(hidden @ weight.t(), targets),
        chunked_cross_entropy_sum(hidden, weight, targets, 4),
    ):
        assert loss.item() == 0 and int(count) == 0
        grads = torch.autograd.grad(loss, (hidden, weight))
        assert all(torch.equal(g, torch.zeros_like(g)) for g in grads)


def problem(rows, length, width, vocab, seed, masked=0.3, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, length, width, generator=generator, dtype=dtype).requires_grad_()
    weight = (0.3 * torch.randn(vocab, width, generator=generator, dtype=dtype)).requires_grad_()
    targets = torch.randint(vocab, (rows, length), generator=generator)
    targets[torch.rand(rows, length, generator=generator) < masked] = IGNORE
    return hidden, weight, targets


@settings(deadline=None)
@given(rows=st.integers(1, 4), length=st.integers(1, 9), chunk=st.integers(1, 40), seed=st.integers(0, 99), masked=st.sampled_from([0.0, 0.3, 0.9]))
def test_chunked_equals_plain_with_its_gradients(rows, length, chunk, seed, masked):
    hidden, weight, targets = problem(rows, length, 6, 17, seed, masked)
    plain, count = cross_entropy_sum(hidden @ weight.t(), targets)
    chunked, chunked_count = chunked_cross_entropy_sum(hidden, weight, targets, chunk)
    assert int(count) == int(chunked_count)
    assert chunked.dtype == torch.float32
    torch.testing.assert_close(chunked, plain, rtol=1e-6, atol=1e-6)
    mine = torch.autograd.grad(chunked / max(int(count), 1), (hidden, weight))
    theirs = torch.autograd.grad(plain / max(int(count), 1), (hidden, weight))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_chunked_gradient_is_the_numerical_one():
    hidden, weight, targets = problem(2, 3, 4, 5, 7, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda h, w: chunked_cross_entropy_sum(h, w, targets, 2)[0], (hidden, weight))


@pytest.mark.parametrize("frozen", ["hidden", "weight", "both"])
def test_chunked_with_a_frozen_side(frozen):
    hidden, weight, targets = problem(2, 8, 6, 17, 3)
    full = torch.autograd.grad(chunked_cross_entropy_sum(hidden, weight, targets, 4)[0], (hidden, weight))
    h = hidden.detach().requires_grad_(frozen == "weight")
    w = weight.detach().requires_grad_(frozen == "hidden")
    loss, _ = chunked_cross_entropy_sum(h, w, targets, 4)
    assert loss.requires_grad == (frozen != "both")
    if frozen != "both":
        loss.backward()
        assert torch.equal(w.grad if frozen == "hidden" else h.grad, full[1] if frozen == "hidden" else full[0])


def test_chunked_bfloat16_accumulates_the_weight_gradient_in_float32():
    hidden, weight, targets = problem(4, 64, 16, 33, 5, masked=0.0)
    low = [t.detach().bfloat16().requires_grad_() for t in (hidden, weight)]
    loss, _ = chunked_cross_entropy_sum(*low, targets, 2)
    grads = torch.autograd.grad(loss, low)
    exact = torch.autograd.grad(cross_entropy_sum(low[0].double() @ low[1].double().t(), targets)[0], low)
    assert all(g.dtype == torch.bfloat16 for g in grads)
    for got, expected in zip(grads, exact, strict=True):
        assert (got.double() - expected.double()).norm() < 0.01 * expected.double().norm()


def test_chunked_never_builds_all_logits():
    """Largest tensor made inside, in elements: a chunk of logits or the weight gradient, far below positions x vocabulary."""
    hidden, weight, targets = problem(4, 64, 8, 500, 6, masked=0.0)
    sizes = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes.extend(t.numel() for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, torch.Tensor))
            return out

    with Sizes():
        chunked_cross_entropy_sum(hidden, weight, targets, 16)[0].backward()
    assert max(sizes) == max(16 * 500, 500 * 8)
    with Sizes():
        cross_entropy_sum(hidden @ weight.t(), targets)[0].backward()
    assert max(sizes) == 4 * 64 * 500


def test_mismatched_shapes_and_chunks_are_refused():
    with pytest.raises(ValueError, match=r"got targets \(2, 3\), expected \(2, 4\)"):
        cross_entropy_sum(torch.zeros(2, 4, 5), torch.zeros(2, 3, dtype=torch.long))
    hidden, weight, targets = problem(2, 3, 4, 5, 0)
    with pytest.raises(ValueError, match="expected \\(\\.\\.\\., H\\)"):
        chunked_cross_entropy_sum(hidden, weight, targets[:, :2], 4)
    with pytest.raises(ValueError, match="chunk_size: got 0"):
        chunked_cross_entropy_sum(hidden, weight, targets, 0)


def test_target_outside_the_vocabulary_is_an_error():
    hidden, weight, _ = problem(1, 2, 4, 5, 0)
    for target in (5, -1):
        with pytest.raises((IndexError, RuntimeError)):
            chunked_cross_entropy_sum(hidden, weight, torch.tensor([[0, target]]), 4)


def small_decoder(vocab: int) -> Decoder:
    config = DecoderConfig(
        vocab_size=vocab, num_layers=1, hidden_size=32, intermediate_size=64, num_heads=2, num_kv_heads=1, head_dim=16,
        max_seq_len=16, rope_base=10000.0, norm_eps=1e-6, tied_head=False, qk_norm=True, qkv_bias=False,
    )  # fmt: skip
    model = Decoder(config)
    init_weights(model, 1)
    return model


def test_data_06_packed_loss_is_the_sum_of_the_separate_documents():
    """Two three-token documents in one row: the boundary target is ignored, and B's loss does not depend on A."""
    model = small_decoder(32)
    first, second = [5, 6, 7], [9, 8, 4]
    tokens = torch.tensor([first + second])
    targets = torch.tensor([[6, 7, IGNORE, 8, 4, IGNORE]])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
    segments = torch.tensor([[0, 0, 0, 1, 1, 1]])
    packed, count = cross_entropy_sum(model(tokens, positions, segments), targets)
    apart = [cross_entropy_sum(model(torch.tensor([d[:-1]])), torch.tensor([d[1:]])) for d in (first, second)]
    assert int(count) == 4 == sum(int(n) for _, n in apart)
    torch.testing.assert_close(packed, apart[0][0] + apart[1][0], rtol=1e-6, atol=1e-6)


def test_loss_03_position_t_is_scored_on_the_target_at_t_and_nothing_is_shifted_again():
    """Overfit a repeating 1 2 3 4 beside a row of other tokens; greedy output reproduces each row's own successor."""
    rows = torch.tensor([[1, 2, 3, 4] * 3, [9, 7, 8, 6] * 3])
    model = small_decoder(12)
    optim = adamw(model, lr=0.02, betas=(0.9, 0.95), weight_decay=0.0)
    for _ in range(40):
        loss, count = cross_entropy_sum(model(rows[:, :-1]), rows[:, 1:])
        (loss / count).backward()
        guarded_step(optim, model.parameters(), 1.0)
    with torch.no_grad():
        assert torch.equal(model(rows[:, :-1]).argmax(-1)[:, 3:], rows[:, 4:])
    spiked = torch.full((1, 3, 4), -50.0)
    spiked[0, [0, 1, 2], [3, 1, 2]] = 50.0
    assert cross_entropy_sum(spiked, torch.tensor([[3, 1, 2]]))[0].item() == pytest.approx(0, abs=1e-6)
