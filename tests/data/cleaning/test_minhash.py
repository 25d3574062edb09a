"""Signatures estimate Jaccard similarity; bands are the optimum for the recall that is asked."""

from __future__ import annotations

import numpy as np
import pytest

from data.cleaning.minhash import band_keys, choose_bands, found_probability, signature


@pytest.mark.parametrize("similarity", [0.3, 0.5, 0.8, 0.95])
def test_the_share_of_equal_minima_estimates_the_similarity(similarity: float) -> None:
    """200 pairs of sets: no bias beyond 4 standard errors, and the spread of independent draws, sqrt(J (1 - J) / P)."""
    rng, size, num_perm = np.random.default_rng(0), 300, 128
    shared = round(2 * size * similarity / (1 + similarity))
    true, errors = shared / (2 * size - shared), []
    for _ in range(200):
        pool = rng.integers(0, 2**63, 2 * size - shared, np.uint64)
        errors.append(np.mean(signature(pool[:size], num_perm) == signature(pool[size - shared :], num_perm)) - true)
    expected = (true * (1 - true) / num_perm) ** 0.5
    assert abs(np.mean(errors)) < 4 * expected / 200**0.5 and 0.75 < np.std(errors) / expected < 1.25


def test_a_signature_is_the_minimum_of_its_parts_whatever_the_block() -> None:
    values = np.random.default_rng(1).integers(0, 2**63, 5000, np.uint64)
    parts = [signature(part, 64) for part in np.array_split(values, 7)]
    assert (signature(values, 64) == np.minimum.reduce(parts)).all() and (signature(values[::-1], 64) == signature(values, 64)).all()
    assert (signature(values, 128)[:64] == signature(values, 64)).all()


def test_probabilities_by_hand() -> None:
    assert found_probability(0.5, 1, 1) == 0.5 and found_probability(0.5, 2, 2) == 1 - 0.75**2 == 0.4375
    assert found_probability(1.0, 3, 9) == 1


@pytest.mark.parametrize(("threshold", "num_perm", "bands", "rows"), [(0.8, 128, 21, 6), (0.5, 128, 42, 3), (1.0, 128, 1, 128), (0.8, 256, 32, 8)])
def test_bands_have_the_most_rows_that_reach_the_recall(threshold: float, num_perm: int, bands: int, rows: int) -> None:
    assert choose_bands(threshold, num_perm) == (bands, rows) and bands * rows <= num_perm
    assert found_probability(threshold, bands, rows) >= 0.995
    assert all(found_probability(threshold, num_perm // more, more) < 0.995 for more in range(rows + 1, num_perm + 1))


def test_too_few_permutations_are_refused() -> None:
    with pytest.raises(ValueError, match="num_perm=2 finds pairs at threshold 0.5 with less than 99.5% probability; raise num_perm or threshold"):
        choose_bands(0.5, 2)


def test_band_keys_are_equal_exactly_where_the_minima_are() -> None:
    rows = np.array([[1, 2, 3], [1, 2, 3], [3, 2, 1], [0, 0, 0], [0, 0, 1]], np.uint32)
    keys = band_keys(rows)
    assert keys[0] == keys[1] and len(set(keys.tolist())) == 4
