"""Groups of near-duplicates: every link is verified, chains are followed, order does not matter."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data.cleaning.minhash import choose_bands, signature
from data.cleaning.near_duplicates import Groups, ShingleCache, buckets, find_groups, jaccard
from data.cleaning.words import shingles


def groups_of(sets: list[np.ndarray], threshold: float) -> list[list[int]]:
    bands, rows = choose_bands(threshold, 128)
    signatures = np.array([signature(values, bands * rows) for values in sets], np.uint32).reshape(len(sets), bands, rows).transpose(1, 0, 2)
    return find_groups(signatures, threshold, sets.__getitem__).joined()


def numbers(*ranges: range) -> np.ndarray:
    """Distinct well-mixed 64-bit values for the numbers of the ranges."""
    values = np.array(sorted({i for part in ranges for i in part}), np.uint64)
    return np.sort((values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))


def test_jaccard_by_hand() -> None:
    assert jaccard(np.array([1, 2, 3]), np.array([2, 3, 4])) == 0.5
    assert jaccard(np.array([1]), np.array([2])) == 0 and jaccard(np.array([1, 2]), np.array([1, 2])) == 1


def test_a_chain_is_one_group_and_a_pair_under_the_threshold_none() -> None:
    """0-1 and 1-2 are at 90/110 = .818, so 0-2, at 80/120, hang together through 1; 3-4 are at 87/113 = .770."""
    sets = [numbers(range(0, 100)), numbers(range(10, 110)), numbers(range(20, 120)), numbers(range(1000, 1100)), numbers(range(1013, 1113))]
    assert groups_of(sets, 0.8) == [[0, 1, 2]]
    assert groups_of(sets, 0.75) == [[0, 1, 2], [3, 4]]
    assert groups_of([], 0.8) == [] == groups_of(sets[:1], 0.8)


def test_a_large_group_and_look_alikes() -> None:
    """700 versions of one text, more than are compared at a time, and 30 that share half of it."""
    sets = [numbers(range(0, 100), range(10_000 + i * 10, 10_000 + i * 10 + 5)) for i in range(700)]
    sets += [numbers(range(0, 60), range(50_000 + i * 100, 50_000 + i * 100 + 45)) for i in range(30)]
    assert groups_of(sets, 0.8) == [list(range(700))]


@given(st.permutations(range(12)))
def test_order_does_not_matter(order: list[int]) -> None:
    sets = [numbers(range(i * 8, i * 8 + 100)) for i in range(6)] + [numbers(range(5000 + i * 30, 5100 + i * 30)) for i in range(6)]
    found = groups_of([sets[i] for i in order], 0.8)
    assert [sorted(order[i] for i in members) for members in found] == [[0, 1, 2, 3, 4, 5]]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=15))
def test_joining_gives_connected_components(pairs: list[tuple[int, int]]) -> None:
    groups, sets = Groups(10), [{i} for i in range(10)]
    for a, b in pairs:
        groups.join(a, b)
        first, second = next(s for s in sets if a in s), next(s for s in sets if b in s)
        if first is not second:
            sets.remove(second)
            first |= second
    assert groups.joined() == sorted(sorted(s) for s in sets if len(s) > 1)
    assert all((groups.of_N[a] == groups.of_N[b]) == any({a, b} <= s for s in sets) for a in range(10) for b in range(10))


@given(st.lists(st.integers(0, 5), max_size=20))
def test_buckets_are_the_repeated_keys(keys: list[int]) -> None:
    found = {tuple(bucket.tolist()) for bucket in buckets(np.array(keys, np.uint64))}
    assert found == {tuple(i for i, key in enumerate(keys) if key == value) for value in set(keys) if keys.count(value) > 1}


def test_the_cache_is_bounded_and_right() -> None:
    reads: list[int] = []

    def read(index: int) -> np.ndarray:
        reads.append(index)
        return np.full(10, index)

    cache = ShingleCache(read, most=25)
    assert [int(cache(i)[0]) for i in (0, 1, 0, 2, 1, 0)] == [0, 1, 0, 2, 1, 0]
    assert reads == [0, 1, 2, 1, 0]  # 0 was used after 1, so 1 made room for 2, and 0 for 1


def test_scripts_without_spaces() -> None:
    text = "\u6625\u7720\u4e0d\u89c9\u6653\u5904\u5904\u95fb\u557c\u9e1f\u591c\u6765\u98ce\u96e8\u58f0\u82b1\u843d\u77e5\u591a\u5c11"
    assert len(shingles(text, 5)) == 16
    assert jaccard(shingles(text, 5), shingles(text[:-1] + "\u3002", 5)) == 15 / 16
