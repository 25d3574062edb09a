"""Batched generation: prompts -> sampled completions with their log-probabilities.

In: a decoder and prompts of unequal length. Out: `num_samples` completions of every prompt, in the order of the prompts.
A batch runs each of its prompts once, replicates the cached keys and values for the prompt's samples, then decodes one token
per row and step. Finished rows leave the batch; the prompts that did not fit come in the next batch. Prompts are taken by
length, to pad little; because noise is addressed by (seed, prompt, sample, position) (models/inference/sampling.py), neither
that order nor the batch size changes what is drawn, up to the rounding of sums taken over another batch shape.

Shapes: P prompts, B rows (completions under way), T prompt positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.architectures.decoder import Decoder
from models.inference.fused import FusedDecoder, can_fuse
from models.inference.sampling import greedy, sample, uniform_noise
from models.layers.kv_cache import KVCache
from models.precision import hold_weights

Forward = Callable[[Tensor, Tensor, KVCache, Tensor | None], Tensor]
"""(new tokens (B, T), positions (B, T), cache, its rows or None for all) -> final-norm output (B, T, H)."""

PREFILL_TOKENS = 1024
"""Prompts go through the model in parts of this many padded tokens: little padding, and activations that stay in cache."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What was generated after a prompt."""

    tokens: list[int]
    """Generated ids, the end token included when there is one."""
    logprobs: list[float]
    """log softmax(logits / temperature) of each token, nothing truncated; at temperature 1 for greedy choices."""
    finished: bool
    """The last token is one of the end ids. False: cut at max_new_tokens."""


@torch.inference_mode()
def generate(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float,
    eos_ids: Sequence[int],
    seed: int,
    num_samples: int = 1,
    batch_size: int,
    advance: Callable[[int], None] = lambda n: None,
) -> list[list[Completion]]:
    """`num_samples` completions of every prompt: result[prompt][sample].

    temperature 0 takes the likeliest token; any other draws from softmax(logits / temperature). A completion ends with the
    first token in `eos_ids` (several may be given) or after `max_new_tokens`. `batch_size` counts rows, so prompts x samples.
    `advance(n)` is called when n more completions are ready, and advance(0) after every token, so that what it raises ends the
    generation at once. Raises ValueError for an empty prompt, one that leaves no room for max_new_tokens within the model's
    max_seq_len, or settings out of range; RuntimeError for logits that are not finite.
    """
    _check(model, prompts, max_new_tokens, temperature, eos_ids, num_samples, batch_size)
    results: list[list[Completion]] = [[] for _ in prompts]
    by_length = sorted(range(len(prompts)), key=lambda p: (len(prompts[p]), p))
    rows = [(p, s) for p in by_length for s in range(num_samples)]
    forward = FusedDecoder(model).hidden if can_fuse(model) else model.decode_hidden
    with hold_weights(model):
        for start in range(0, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            completions = _run_batch(model, forward, prompts, batch, max_new_tokens, temperature, eos_ids, seed, advance)
            for (p, _), completion in zip(batch, completions, strict=True):
                results[p].append(completion)
            advance(len(batch))
    return results


def _run_batch(
    model: Decoder,
    forward: Forward,
    prompts: Sequence[Sequence[int]],
    rows: Sequence[tuple[int, int]],
    max_new_tokens: int,
    temperature: float,
    eos_ids: Sequence[int],
    seed: int,
    advance: Callable[[int], None],
) -> list[Completion]:
    """Prefill and decode one batch of (prompt, sample) rows to the end."""
    device = model.head_weight.device
    logits_BV, cache = _prefill(model, forward, prompts, rows, max_new_tokens)
    numbers_B2 = np.array(rows, dtype=np.int64)
    noise_TB = torch.from_numpy(uniform_noise(seed, numbers_B2[:, 0], numbers_B2[:, 1], max_new_tokens).T.copy()).to(device)
    eos_E1 = torch.tensor(list(eos_ids), device=device)[:, None]
    tokens_TB = torch.zeros(max_new_tokens, len(rows), dtype=torch.int64, device=device)
    logprobs_TB = torch.zeros(max_new_tokens, len(rows), dtype=torch.float32, device=device)
    alive_B = torch.arange(len(rows), device=device)
    ended_B = torch.zeros(len(rows), dtype=torch.bool, device=device)
    wasted = 0
    for t in range(max_new_tokens):
        if temperature == 0:
            token_B, logprob_B = greedy(logits_BV)
        else:
            token_B, logprob_B = sample(logits_BV, noise_TB[t, alive_B], temperature)
        tokens_TB[t, alive_B] = token_B
        logprobs_TB[t, alive_B] = logprob_B
        ended_B = ended_B | (token_B == eos_E1).any(dim=0)
        num_ended = int(ended_B.sum())
        if num_ended == len(ended_B) or t == max_new_tokens - 1:
            break
        wasted += num_ended
        if wasted > len(ended_B) - num_ended:
            kept = (~ended_B).nonzero().squeeze(1)
            cache.keep(kept)
            alive_B, token_B, ended_B, wasted = alive_B[kept], token_B[kept], ended_B[kept], 0
        logits_BV = model.head(forward(token_B[:, None], cache.lengths_B[:, None], cache, None).squeeze(1))
        advance(0)
    if not torch.isfinite(logprobs_TB).all():
        raise RuntimeError(
            "generate: the model's logits are NaN or infinite, so nothing can be sampled; its weights have diverged: train again "
            "with a lower learning rate, or in a higher precision"
        )
    return _completions(tokens_TB.T.cpu().numpy(), logprobs_TB.T.cpu().numpy(), eos_ids)


def _prefill(
    model: Decoder, forward: Forward, prompts: Sequence[Sequence[int]], rows: Sequence[tuple[int, int]], max_new_tokens: int
) -> tuple[Tensor, KVCache]:
    """Run every prompt of the batch once; returns each row's next-token logits (B, V) and the cache replicated to the rows."""
    device = model.head_weight.device
    unique = list(dict.fromkeys(p for p, _ in rows))
    lengths = [len(prompts[p]) for p in unique]
    # The last token generated is never fed back, so it needs no slot.
    cache = KVCache(model.config, len(unique), max(lengths) + max_new_tokens - 1, model.head_weight.dtype, device)
    last_PH = []
    for part in _prefill_parts(lengths):
        width = max(lengths[i] for i in part)
        tokens_PT = torch.tensor([[*prompts[unique[i]], *[0] * (width - lengths[i])] for i in part], device=device)
        positions_PT = torch.arange(width, device=device).expand(len(part), -1)
        hidden_PTH = forward(tokens_PT, positions_PT, cache, torch.tensor(part, device=device))
        ends_P = torch.tensor([lengths[i] - 1 for i in part], device=device)
        last_PH.append(hidden_PTH[torch.arange(len(part), device=device), ends_P])
    cache.set_lengths(lengths)
    logits_PV = model.head(torch.cat(last_PH))
    place = {p: i for i, p in enumerate(unique)}
    prompt_of_row_B = torch.tensor([place[p] for p, _ in rows], device=device)
    cache.keep(prompt_of_row_B)
    return logits_PV[prompt_of_row_B], cache


def _prefill_parts(lengths: Sequence[int]) -> list[list[int]]:
    """Consecutive prompts in parts of at most PREFILL_TOKENS padded tokens, or of one prompt."""
    parts: list[list[int]] = []
    longest = 0
    for i, length in enumerate(lengths):
        longest = max(longest, length)
        if parts and (len(parts[-1]) + 1) * longest <= PREFILL_TOKENS:
            parts[-1].append(i)
        else:
            parts.append([i])
            longest = length
    return parts


def _completions(tokens_BT: np.ndarray, logprobs_BT: np.ndarray, eos_ids: Sequence[int]) -> list[Completion]:
    """Cut every row after its first end token."""
    is_eos_BT = np.isin(tokens_BT, np.asarray(list(eos_ids)))
    finished_B = is_eos_BT.any(axis=1)
    lengths_B = np.where(finished_B, is_eos_BT.argmax(axis=1) + 1, tokens_BT.shape[1])
    return [
        Completion(tokens=tokens[:length].tolist(), logprobs=logprobs[:length].tolist(), finished=bool(finished))
        for tokens, logprobs, length, finished in zip(tokens_BT, logprobs_BT, lengths_B, finished_B, strict=True)
    ]


def _check(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    temperature: float,
    eos_ids: Sequence[int],
    num_samples: int,
    batch_size: int,
) -> None:
    """Refuse settings that cannot work before anything is allocated."""
    for name, value in (("max_new_tokens", max_new_tokens), ("num_samples", num_samples), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name}: got {value}, expected at least 1")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature: got {temperature!r}, expected 0 (greedy) or a positive number")
    vocab = model.config.vocab_size
    bad = [eos for eos in eos_ids if not 0 <= eos < vocab]
    if bad:
        raise ValueError(f"eos_ids: got {bad}, expected ids below the vocabulary size {vocab}")
    longest = model.config.max_seq_len - max_new_tokens
    for i, prompt in enumerate(prompts):
        if not 1 <= len(prompt) <= longest:
            raise ValueError(
                f"prompt {i}: got {len(prompt)} tokens, expected 1 to {longest} (max_seq_len {model.config.max_seq_len} less "
                f"max_new_tokens {max_new_tokens}); shorten the prompt or generate fewer tokens"
            )
        if not 0 <= min(prompt) <= max(prompt) < vocab:
            raise ValueError(f"prompt {i}: got token ids {min(prompt)} to {max(prompt)}, expected 0 to {vocab - 1}")
