"""MinHash signatures and the banding that turns them into candidates: Broder 1997; Leskovec, Rajaraman, Ullman, "Mining of Massive
Datasets", section 3.4.

In: the distinct shingle hashes of a document. Out: a signature of P 32-bit minima, of which two documents share a fraction whose
expectation is their Jaccard similarity. Two documents are candidates when all `rows` minima of any of `bands` bands agree, which at
similarity s happens with probability 1 - (1 - s^rows)^bands.
Legend: S shingles, P permutations, B bands, R rows a band, N documents.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from xxhash import xxh64_intdigest

_BLOCK = 1024
"""Shingles at a time: P x 1024 x 4 bytes stay in the second-level cache."""


@lru_cache(maxsize=4)
def _permutations(num_perm: int) -> tuple[np.ndarray, np.ndarray]:
    """(P, 1) uint32 factors (odd, so that x -> a x + b modulo 2^32 is a permutation) and offsets, the same in every process."""
    drawn = [xxh64_intdigest(f"minhash/{index}".encode()) for index in range(num_perm)]
    factors, offsets = ([value & 0xFFFFFFFF for value in drawn], [value >> 32 for value in drawn])
    return np.array(factors, np.uint32)[:, None] | np.uint32(1), np.array(offsets, np.uint32)[:, None]


def signature(shingles_S: np.ndarray, num_perm: int) -> np.ndarray:
    """(P,) uint32: for each permutation the smallest image of the S >= 1 uint64 shingle hashes, folded to 32 bits."""
    factors, offsets = _permutations(num_perm)
    folded_S = (shingles_S ^ (shingles_S >> np.uint64(32))).astype(np.uint32)
    minima_P = np.full(num_perm, 0xFFFFFFFF, np.uint32)
    for start in range(0, len(folded_S), _BLOCK):
        images_PS = factors * folded_S[start : start + _BLOCK]
        images_PS += offsets
        np.minimum(minima_P, images_PS.min(axis=1), out=minima_P)
    return minima_P


def found_probability(similarity: float, bands: int, rows: int) -> float:
    """Probability that two documents of this Jaccard similarity become candidates."""
    return 1 - (1 - similarity**rows) ** bands


def choose_bands(threshold: float, num_perm: int, recall: float = 0.995) -> tuple[int, int]:
    """(bands, rows): the most rows, so the fewest false candidates, with which a pair exactly at the threshold is found with
    probability `recall`. Candidates are verified afterwards, so false ones cost time only.

    ValueError when num_perm is too small for it at any number of rows.
    """
    fitting = [rows for rows in range(1, num_perm + 1) if found_probability(threshold, num_perm // rows, rows) >= recall]
    if not fitting:
        raise ValueError(f"num_perm={num_perm} finds pairs at threshold {threshold} with less than {recall:.1%} probability; raise num_perm or threshold")
    return num_perm // fitting[-1], fitting[-1]


def band_keys(signatures_NR: np.ndarray) -> np.ndarray:
    """(N,) uint64: one hash of a band's R minima for each document; equal minima share it."""
    keys_N = np.zeros(len(signatures_NR), np.uint64)
    for row in range(signatures_NR.shape[1]):
        keys_N = (keys_N ^ signatures_NR[:, row]) * np.uint64(0x9E3779B97F4A7C15)
        keys_N ^= keys_N >> np.uint64(32)
    return keys_N
