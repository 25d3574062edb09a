"""Choosing the next token of every row from its logits, with noise addressed by number instead of drawn from a stream.

In: logits (B, V) and one uniform number per row. Out: token ids and their log-probabilities at the sampling temperature.
The uniform of (seed, prompt, sample, position) is a hash of these four numbers, so a completion depends neither on the other
rows of its batch, nor on the batch size, nor on what was generated before: regrouping or resuming draws the same samples.
One uniform per row inverts the cumulative distribution: exact, and far cheaper than noise for every vocabulary entry.

Shapes: B rows, V vocabulary, T positions. Hash: the finaliser of SplitMix64 (Steele, Lea and Flood 2014,
"Fast splittable pseudorandom number generators").
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

UNIFORM_BITS = 23


def uniform_noise(seed: int, prompts_B: np.ndarray, samples_B: np.ndarray, num_positions: int) -> np.ndarray:
    """Uniforms in [0, 1) for the first `num_positions` draws of each row, (B, T) float32; multiples of 2^-23.

    A pure function of (seed, prompt number, sample number, position). 23 bits, so that u times a float32 total stays below it.
    """
    positions_T = np.arange(num_positions, dtype=np.uint64)
    with np.errstate(over="ignore"):
        key_B = _mix(_mix(_mix(np.array([seed % 2**64], dtype=np.uint64)) ^ prompts_B.astype(np.uint64)) ^ samples_B.astype(np.uint64))
        bits_BT = _mix(key_B[:, None] ^ positions_T[None, :]) >> np.uint64(64 - UNIFORM_BITS)
    return bits_BT.astype(np.float32) * np.float32(2.0**-UNIFORM_BITS)


def sample(logits_BV: Tensor, uniform_B: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Draw a token per row from softmax(logits / temperature): (token ids (B,), log-probabilities (B,) float32).

    The token is the first whose cumulative probability exceeds the row's uniform, so a token of probability 0 is never drawn.
    A row with a NaN has no such token: it gets the last one, with a NaN log-probability, for the caller to find. `logits_BV` is
    overwritten: a vocabulary-sized copy costs as much as the arithmetic.
    """
    if temperature != 1.0:
        logits_BV.div_(temperature)
    weight_BV = logits_BV.sub_(logits_BV.amax(dim=1, keepdim=True)).exp_()
    cumulative_BV = weight_BV.cumsum(dim=1)
    total_B1 = cumulative_BV[:, -1:]
    chosen_B1 = torch.searchsorted(cumulative_BV, uniform_B[:, None] * total_B1, right=True)
    chosen_B1.clamp_(max=logits_BV.shape[1] - 1)
    logprob_B1 = (weight_BV.gather(1, chosen_B1) / total_B1).log()
    return chosen_B1.squeeze(1), logprob_B1.squeeze(1)


def greedy(logits_BV: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest token of each row (the lowest id among equals) and its log-probability at temperature 1.

    `logits_BV` is overwritten.
    """
    best_B1, chosen_B1 = logits_BV.max(dim=1, keepdim=True)
    logprob_B = -logits_BV.sub_(best_B1).exp_().sum(dim=1).log()
    return chosen_B1.squeeze(1), logprob_B


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64: adds the golden-ratio increment and scrambles, on uint64 with wrap-around."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
