"""Shares, passes and phases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.mixing import BySize, deal, temperature_shares, whole_passes


def test_temperature_by_hand() -> None:
    assert temperature_shares({"a": 900, "b": 100}, 1.0) == {"a": pytest.approx(0.9), "b": pytest.approx(0.1)}
    assert temperature_shares({"a": 900, "b": 100}, 2.0) == {"a": pytest.approx(0.75), "b": pytest.approx(0.25)}  # sqrt: 30 to 10
    assert temperature_shares({"a": 900, "b": 100}, 1e9)["b"] == pytest.approx(0.5)
    assert temperature_shares({"a": 3e12, "b": 1}, 0.001) == {"a": 1.0, "b": 0.0}
    assert BySize(total_bytes=1000, temperature=2.0).targets({"a": 900, "b": 100}) == {"a": 750, "b": 250}
    with pytest.raises(ValueError, match="got temperature 0 and amounts {'a': 1}; expected all above zero"):
        temperature_shares({"a": 1}, 0)
    with pytest.raises(ValueError, match="expected all above zero"):
        temperature_shares({"a": 1, "b": 0}, 1.0)


@pytest.mark.parametrize(("train", "wanted", "cap", "passes"), [
    (100, 50, 5, 1), (100, 199, 5, 1), (100, 200, 5, 2), (100, 950, 5, 5), (100, 950, 1, 1), (0, 50, 5, 1), (100, -5, 5, 1),
])
def test_whole_passes(train: int, wanted: int, cap: int, passes: int) -> None:
    assert whole_passes(train, wanted, cap) == passes


@given(st.lists(st.integers(1, 100), min_size=1, max_size=40), st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any), st.integers(1, 3))
def test_phases_get_their_part_to_within_a_document(sizes: list[int], weights: list[int], passes: int) -> None:
    ids = [f"id{i}" for i in range(len(sizes))]
    dealt = deal(ids, sizes, weights, passes, 7)
    assert dealt.shape == (passes, len(sizes)) and dealt.min() >= 0 and dealt.max() < len(weights)
    for phase, weight in enumerate(weights):
        got = sum(sizes[i] for row in dealt for i in range(len(sizes)) if row[i] == phase)
        assert abs(got - passes * sum(sizes) * weight / sum(weights)) <= max(sizes)
        assert weight or not got or max(sizes) > 0
    order = sorted(range(len(ids)), key=lambda i: ids[i][::-1])
    again = deal([ids[i] for i in order], [sizes[i] for i in order], weights, passes, 7)
    assert (again == dealt[:, order]).all()


def test_one_phase_takes_all_and_a_phase_without_weight_nothing() -> None:
    ids, sizes = [str(i) for i in range(50)], list(range(1, 51))
    assert not deal(ids, sizes, [3], 2, 0).any()
    assert set(np.unique(deal(ids, sizes, [0, 1, 0], 2, 0))) == {1}
    assert (deal(ids, sizes, [1, 1], 1, 0) != deal(ids, sizes, [1, 1], 1, 1)).any()
