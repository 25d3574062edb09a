"""De-duplication and selection over ids and sizes."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.dedupe import content_id, fill_budget, first_occurrences


def test_content_id_is_the_head_of_sha256() -> None:
    assert content_id("abc") == hashlib.sha256(b"abc").hexdigest()[:32] == "ba7816bf8f01cfea414140de5dae2223"
    assert content_id("a\r\nb") != content_id("a\nb")


def test_the_first_in_order_survives_across_sources() -> None:
    seen: set[str] = set()
    assert first_occurrences(["a", "b", "a"], seen) == [True, True, False]
    assert first_occurrences(["b", "c"], seen) == [False, True]


@given(st.dictionaries(st.text(min_size=1, max_size=4), st.integers(1, 50), min_size=1, max_size=30), st.integers(50, 500), st.integers(0, 3))
def test_budget_is_never_exceeded_and_left_only_when_nothing_fits(sizes: dict[str, int], budget: int, seed: int) -> None:
    ids, lengths = list(sizes), list(sizes.values())
    chosen = fill_budget(ids, lengths, budget, seed)
    used = sum(size for size, keep in zip(lengths, chosen) if keep)
    assert used <= budget
    assert all(keep or size > budget - used for size, keep in zip(lengths, chosen))
    order = sorted(range(len(ids)), key=lambda i: ids[i][::-1])
    again = fill_budget([ids[i] for i in order], [lengths[i] for i in order], budget, seed)
    assert {ids[i] for i, keep in zip(order, again) if keep} == {key for key, keep in zip(ids, chosen) if keep}


def test_the_choice_follows_the_seed() -> None:
    ids = [str(i) for i in range(100)]
    picks = {tuple(fill_budget(ids, [1] * 100, 10, seed)) for seed in range(3)}
    assert len(picks) == 3


def test_nothing_fits() -> None:
    with pytest.raises(ValueError, match="a budget of 5 bytes holds no document .the smallest has 7.; raise text_tokens"):
        fill_budget(["a", "b"], [9, 7], 5, 0)
    assert fill_budget([], [], 5, 0) == []
