"""Sampling: noise is a function of its address, draws follow the softmax, log-probabilities are exact."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.inference.sampling import greedy, sample, uniform_noise


def test_noise_is_a_function_of_its_address():
    rows = np.array([3, 0, 7]), np.array([1, 4, 1])
    noise_BT = uniform_noise(5, *rows, 6)
    for i in range(3):
        alone = uniform_noise(5, rows[0][i : i + 1], rows[1][i : i + 1], 6)
        np.testing.assert_array_equal(noise_BT[i], alone[0])
    np.testing.assert_array_equal(uniform_noise(5, *rows, 9)[:, :6], noise_BT)


def test_noise_differs_by_seed_prompt_sample_and_position():
    prompts, samples = (a.ravel() for a in np.meshgrid(np.arange(20), np.arange(20)))
    noise = np.stack([uniform_noise(seed, prompts, samples, 25) for seed in (0, 1, 2**40)])
    values, counts = np.unique(noise, return_counts=True)
    # 30,000 draws of 2^23 values collide about 54 times by chance.
    assert noise.size - len(values) < 120
    assert counts.max() <= 3
    assert abs(np.corrcoef(noise[0, :, :-1].ravel(), noise[0, :, 1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.03


def test_noise_is_uniform_and_below_one():
    noise = uniform_noise(1, np.arange(400), np.zeros(400, dtype=int), 100)
    assert noise.dtype == np.float32
    assert noise.min() >= 0 and noise.max() < 1
    counts, _ = np.histogram(noise, bins=20, range=(0, 1))
    chi_square = ((counts - 2000) ** 2 / 2000).sum()
    assert chi_square < 45  # 19 degrees of freedom: 0.07 % of fair generators exceed it


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_draws_follow_the_softmax_at_the_temperature(temperature):
    logits_V = torch.tensor([2.0, 1.0, 0.0, -1.0, float("-inf")])
    draws = 40_000
    uniforms = torch.from_numpy(uniform_noise(0, np.arange(draws), np.zeros(draws, dtype=int), 1)[:, 0])
    tokens, logprobs = sample(logits_V.expand(draws, 5).clone(), uniforms, temperature)
    expected_V = (logits_V / temperature).softmax(0)
    counts_V = torch.bincount(tokens, minlength=5)
    assert counts_V[4] == 0
    chi_square = ((counts_V[:4] - draws * expected_V[:4]) ** 2 / (draws * expected_V[:4])).sum()
    assert chi_square < 20  # 3 degrees of freedom: 0.02 % of exact samplers exceed it
    torch.testing.assert_close(logprobs, expected_V.log()[tokens], atol=1e-5, rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=8), st.integers(0, 2**23 - 1), st.floats(0.05, 3))
def test_the_inverse_of_the_cumulative_distribution(logits, k, temperature):
    logits_BV = torch.tensor([logits])
    uniform = k / 2**23
    [token], [logprob] = sample(logits_BV.clone(), torch.tensor([uniform]), temperature)
    cumulative = (logits_BV.double() / temperature).softmax(1).cumsum(1)[0]
    below = cumulative[token - 1] if token > 0 else 0.0
    assert below - 1e-5 <= uniform <= cumulative[token] + 1e-5
    assert 0 <= token < len(logits)
    assert logprob == pytest.approx((logits_BV / temperature).log_softmax(1)[0, token].item(), abs=1e-4)


def test_the_largest_uniform_never_falls_off_the_end():
    for size in (1, 7, 2048):
        logits_BV = torch.randn(50, size, generator=torch.Generator().manual_seed(size))
        logits_BV[:, -1] = -200.0 if size > 1 else 0.0
        tokens, _ = sample(logits_BV, torch.full((50,), 1 - 2.0**-23), 1.0)
        assert tokens.max() < max(size - 1, 1)


def test_greedy_takes_the_first_of_equals_and_gives_its_logprob():
    logits_BV = torch.tensor([[0.0, 2.0, 2.0], [1.0, 0.0, -1.0]])
    tokens, logprobs = greedy(logits_BV.clone())
    assert tokens.tolist() == [1, 0]
    torch.testing.assert_close(logprobs, logits_BV.log_softmax(1)[[0, 1], [1, 0]])
