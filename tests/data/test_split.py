"""Splits: stable, by content, disjoint; shares: whole and exact."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.split import SPLITS, apportion, check_disjoint, split_of, unit_interval


def test_unit_interval_is_the_head_of_sha256() -> None:
    """sha256("abc") = ba7816bf8f01cfea...; its first 53 bits over 2**53."""
    assert unit_interval("abc") == (0xBA7816BF8F01CFEA >> 11) / 2**53
    assert split_of("abc", 0.1, 0.1) == "train"  # 0.728...
    assert split_of("abc", 0.28, 0.1) == "val"
    assert split_of("abc", 0.1, 0.73) == "test"


@given(st.text(), st.floats(0, 0.3), st.floats(0, 0.3), st.floats(0, 0.2))
def test_a_larger_fraction_only_takes_from_train(key: str, val: float, test: float, more: float) -> None:
    before = split_of(key, val, test)
    for after in (split_of(key, val + more, test), split_of(key, val, test + more)):
        assert after == before or before == "train"


def test_shares_are_about_the_fractions() -> None:
    counts = {split: 0 for split in SPLITS}
    for i in range(10_000):
        counts[split_of(f"document {i}", 0.05, 0.1)] += 1
    assert abs(counts["val"] - 500) < 100 and abs(counts["test"] - 1000) < 140


def test_check_disjoint() -> None:
    check_disjoint({"train": ["a", "a", "b"], "val": ["c"], "test": []}, "documents")
    with pytest.raises(ValueError, match="documents: 'b' is in both train and test; expected no overlap"):
        check_disjoint({"train": ["a", "b"], "val": ["c"], "test": ["b"]}, "documents")


def test_apportion_by_hand() -> None:
    assert apportion(10, {"a": 1.0, "b": 1.0, "c": 1.0}) == {"a": 4, "b": 3, "c": 3}
    assert apportion(7, {"b": 2, "a": 1}) == {"a": 2, "b": 5}
    assert apportion(5, {"a": 0.0, "b": 1.0}) == {"a": 0, "b": 5}


@given(st.integers(0, 10_000), st.dictionaries(st.text(max_size=3), st.floats(0.001, 100), min_size=1, max_size=8))
def test_apportion_is_exact_and_fair(total: int, weights: dict[str, float]) -> None:
    counts = apportion(total, weights)
    assert sum(counts.values()) == total
    whole = sum(weights.values())
    assert all(abs(counts[name] - total * weights[name] / whole) < 1 + 1e-6 for name in weights)


@pytest.mark.parametrize("weights", [{"a": -1.0, "b": 2.0}, {"a": 0.0}])
def test_apportion_refuses_meaningless_weights(weights: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected none below zero"):
        apportion(3, weights)
