"""Generation against a loop without a cache, by row, by batch size; end ids (RL-06); log-probabilities against the trainer's."""

from __future__ import annotations

import pytest
import torch

from models.architectures.decoder import Decoder, DecoderConfig, init_weights
from models.inference import generate as module
from models.inference.fused import FusedDecoder, can_fuse
from models.inference.generate import Completion, generate
from models.precision import apply_precision
from models.rl.logprobs import token_logprobs
from tests.models.toy import toy_model

VOCAB = 40


@pytest.fixture(scope="module")
def model() -> Decoder:
    config = DecoderConfig(
        vocab_size=VOCAB, num_layers=2, hidden_size=16, intermediate_size=24, num_heads=4, num_kv_heads=2, head_dim=8,
        max_seq_len=64, rope_base=10000.0, norm_eps=1e-6, tied_head=True, qk_norm=True, qkv_bias=False,
    )  # fmt: skip
    decoder = Decoder(config)
    init_weights(decoder, 0)
    with torch.no_grad():  # spread the logits, or every token is nearly as likely as any other
        decoder.model.embed_tokens.weight.mul_(15)
    return decoder


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, VOCAB, (length,), generator=generator).tolist() for length in (5, 1, 9, 3, 5, 12, 2)]


def settings(**changes: object) -> dict:
    return {"max_new_tokens": 10, "temperature": 1.0, "eos_ids": [], "seed": 3, "batch_size": 64, **changes}


@torch.no_grad()
def without_cache(model: Decoder, prompt: list[int], max_new_tokens: int, eos_ids: list[int]) -> list[int]:
    """Greedy decoding that runs the whole row again for every token."""
    tokens: list[int] = []
    while len(tokens) < max_new_tokens and not (tokens and tokens[-1] in eos_ids):
        tokens.append(model(torch.tensor([prompt + tokens]))[0, -1].argmax().item())
    return tokens


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 64])
def test_greedy_equals_the_loop_without_a_cache(model, prompts, batch_size):
    eos_ids = [0, 5, 11, 17]
    got = generate(model, prompts, **settings(temperature=0.0, eos_ids=eos_ids, batch_size=batch_size))
    assert [len(group) for group in got] == [1] * len(prompts)
    assert [group[0].tokens for group in got] == [without_cache(model, prompt, 10, eos_ids) for prompt in prompts]


@pytest.mark.parametrize("batch_size", [1, 4, 10, 28])
def test_samples_do_not_depend_on_the_batch_size(model, prompts, batch_size):
    eos_ids = list(range(6))
    whole = generate(model, prompts, **settings(num_samples=4, eos_ids=eos_ids))
    cut = generate(model, prompts, **settings(num_samples=4, eos_ids=eos_ids, batch_size=batch_size))
    assert [[c.tokens for c in group] for group in cut] == [[c.tokens for c in group] for group in whole]
    assert {c.finished for group in whole for c in group} == {True, False}


def test_a_completion_does_not_depend_on_other_prompts(model, prompts):
    together = generate(model, prompts, **settings(num_samples=2))
    alone = generate(model, prompts[:3], **settings(num_samples=2))
    assert [[c.tokens for c in group] for group in together[:3]] == [[c.tokens for c in group] for group in alone]


def test_seeds_and_samples_differ_and_repeat(model, prompts):
    def tokens(seed: int) -> list:
        return [[c.tokens for c in group] for group in generate(model, prompts, **settings(seed=seed, num_samples=3))]

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)
    assert all(len({tuple(sample) for sample in group}) > 1 for group in tokens(1))


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_logprobs_are_the_trainers_at_the_sampling_temperature(model, prompts, temperature):
    for prompt, group in zip(prompts, generate(model, prompts, **settings(temperature=temperature, num_samples=2)), strict=True):
        for completion in group:
            tokens_BT = torch.tensor([prompt + completion.tokens])
            mask_BT = torch.arange(tokens_BT.shape[1])[None] >= len(prompt)
            with torch.no_grad():
                want = token_logprobs(model, tokens_BT, mask_BT, temperature=temperature)[mask_BT]
            torch.testing.assert_close(torch.tensor(completion.logprobs), want, atol=1e-5, rtol=1e-5)


def test_rl06_any_end_id_finishes_and_is_kept(model, prompts):
    free = [group[0].tokens for group in generate(model, prompts, **settings(temperature=0.0, max_new_tokens=12))]
    second = max({t for tokens in free for t in tokens}, key=lambda t: sum(t in tokens for tokens in free))
    first = next(t for t in range(VOCAB) if all(t not in tokens for tokens in free))
    got = [group[0] for group in generate(model, prompts, **settings(temperature=0.0, max_new_tokens=12, eos_ids=[first, second]))]
    assert any(second in tokens for tokens in free)
    for tokens, completion in zip(free, got, strict=True):
        if second in tokens:
            assert completion.finished and completion.tokens == tokens[: tokens.index(second) + 1]
        else:
            assert not completion.finished and completion.tokens == tokens
        assert len(completion.logprobs) == len(completion.tokens)


def test_rl06_an_end_id_of_zero_is_not_confused_with_padding(model, prompts):
    """Buffers are filled with 0, so 0 as the end id would show a length guessed from content."""
    free = [group[0].tokens for group in generate(model, prompts, **settings(num_samples=1, seed=8))]
    got = [group[0] for group in generate(model, prompts, **settings(num_samples=1, seed=8, eos_ids=[0]))]
    for tokens, completion in zip(free, got, strict=True):
        assert completion.finished == (0 in tokens)
        assert completion.tokens == (tokens[: tokens.index(0) + 1] if 0 in tokens else tokens)


@pytest.fixture()
def shapes(monkeypatch) -> list[tuple[int, ...]]:
    """Shapes of the token batches that reach the model."""
    seen: list[tuple[int, ...]] = []
    hidden = FusedDecoder.hidden
    monkeypatch.setattr(FusedDecoder, "hidden", lambda self, tokens, *rest: seen.append(tuple(tokens.shape)) or hidden(self, tokens, *rest))
    return seen


def test_finished_rows_leave_the_batch(model, prompts, shapes):
    generate(model, prompts, **settings(num_samples=4, eos_ids=list(range(15)), max_new_tokens=30))
    rows = [shape[0] for shape in shapes if shape[1] == 1]
    assert rows[0] == 4 * len(prompts)
    assert rows[-1] < rows[0] // 2
    assert sum(rows) < 0.6 * 29 * rows[0]


def test_a_prompt_is_run_once_for_all_its_samples(model, shapes):
    generate(model, [[1, 2, 3], [4, 5, 6]], **settings(num_samples=5, max_new_tokens=2))
    assert shapes == [(2, 3), (10, 1)]


def test_prompts_go_through_in_parts_of_bounded_size(model, prompts, shapes, monkeypatch):
    whole = generate(model, prompts, **settings())
    shapes.clear()
    monkeypatch.setattr(module, "PREFILL_TOKENS", 12)
    assert [group[0].tokens for group in generate(model, prompts, **settings())] == [group[0].tokens for group in whole]
    prefill = [shape for shape in shapes if shape[1] > 1 or shape[0] < len(prompts)]
    assert prefill == [(3, 3), (2, 5), (1, 9), (1, 12)]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8_tensorwise"])
def test_a_model_in_low_precision_generates_in_that_precision(prompts, precision):
    """Greedy tokens are those of the same low-precision model without a cache, or of a near tie."""
    quantised = toy_model()
    apply_precision(quantised, precision)
    assert can_fuse(quantised) == (precision == "fp32")
    for prompt in prompts[:3]:
        [[completion]] = generate(quantised, [prompt], **settings(temperature=0.0, max_new_tokens=4))
        row = torch.tensor([prompt + completion.tokens])
        with torch.no_grad():
            lp_TV = quantised(row)[0, len(prompt) - 1 : -1].log_softmax(-1)
        chosen = lp_TV.gather(1, torch.tensor(completion.tokens)[:, None]).squeeze(1)
        assert (lp_TV.amax(dim=1) - chosen).max() < (1e-5 if precision == "fp32" else 0.5)


def test_progress_counts_every_completion(model, prompts):
    seen: list[int] = []
    generate(model, prompts, **settings(num_samples=2, batch_size=5, advance=seen.append))
    seen = [n for n in seen if n]
    assert sum(seen) == 2 * len(prompts) and max(seen) <= 5


def test_nothing_is_left_in_the_model(model, prompts):
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    generate(model, prompts, **settings())
    assert all(torch.equal(before[name], parameter) and parameter.grad is None for name, parameter in model.named_parameters())
    assert not torch.is_inference_mode_enabled()


def test_no_prompts_and_full_length(model):
    assert generate(model, [], **settings()) == []
    longest = generate(model, [[1] * 54], **settings())
    assert len(longest[0][0].tokens) == 10
    assert isinstance(longest[0][0], Completion)


@pytest.mark.parametrize(
    ("prompt", "changes", "message"),
    [
        ([], {}, "prompt 0: got 0 tokens"),
        ([1] * 55, {}, "expected 1 to 54"),
        ([1, VOCAB], {}, "token ids 1 to 40"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens"),
        ([1], {"temperature": -1.0}, "temperature"),
        ([1], {"temperature": float("nan")}, "temperature"),
        ([1], {"eos_ids": [VOCAB]}, "eos_ids"),
        ([1], {"num_samples": 0}, "num_samples"),
        ([1], {"batch_size": 0}, "batch_size"),
    ],
)
def test_refusals(model, prompt, changes, message):
    with pytest.raises(ValueError, match=message):
        generate(model, [prompt], **settings(**changes))
