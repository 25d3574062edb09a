"""stages/reporting/scales.py: round ticks, domains that are never empty, thinning that keeps means and spikes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.reporting import scales

FLOATS = st.floats(min_value=-1e9, max_value=1e9)


def test_scale_maps_the_ends_and_the_middle() -> None:
    up = scales.Scale(0.0, 10.0, 200.0, 100.0)
    assert [up(0.0), up(5.0), up(10.0)] == [200.0, 150.0, 100.0]
    log = scales.Scale(1.0, 100.0, 0.0, 10.0, log=True)
    assert log(10.0) == pytest.approx(5.0)


@pytest.mark.parametrize(("low", "high", "log"), [(1.0, 1.0, False), (2.0, 1.0, False), (0.0, 1.0, True), (math.nan, 1.0, False)])
def test_scale_refuses_an_empty_domain(low: float, high: float, log: bool) -> None:
    with pytest.raises(ValueError, match="expected low < high"):
        scales.Scale(low, high, 0.0, 1.0, log)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0.0, 0.5, 1.0]),
        (0.03, 0.17, [0.05, 0.10, 0.15]),
        (0.0, 1000.0, [0.0, 500.0, 1000.0]),
        (-3.0, 5.0, [-2.0, 0.0, 2.0, 4.0]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert scales.ticks(low, high, scales.tick_step(high - low, 4)) == pytest.approx(expected)


@settings(deadline=None)
@given(FLOATS, st.floats(min_value=1e-6, max_value=1e9), st.integers(2, 8))
def test_ticks_lie_inside_and_are_few(low: float, span: float, most: int) -> None:
    found = scales.ticks(low, low + span, scales.tick_step(span, most))
    slack = 1e-6 * span + 1e-6
    assert len(found) <= most + 1
    assert all(low - slack <= tick <= low + span + slack for tick in found)


def test_log_ticks() -> None:
    assert scales.log_ticks(0.5, 2000.0) == pytest.approx([1.0, 10.0, 100.0, 1000.0])
    assert scales.log_ticks(0.9, 4.0) == pytest.approx([1.0, 2.0])


@pytest.mark.parametrize(
    ("value", "step", "expected"),
    [
        (0.0, 1.0, "0"),
        (2000.0, 500.0, "2.0k"),
        (2000.0, 1000.0, "2k"),
        (250.0, 50.0, "250"),
        (0.25, 0.05, "0.25"),
        (1.5e6, 5e5, "1.5M"),
        (-0.5, 0.5, "\u22120.5"),
        (0.00002, 1e-5, "2e-5"),
    ],
)
def test_tick_labels(value: float, step: float, expected: str) -> None:
    assert scales.tick_label(value, step) == expected


@settings(deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=20), st.booleans())
def test_domain_is_never_empty_and_holds_all_values(numbers: list[float], include_zero: bool) -> None:
    low, high = scales.padded_domain(numbers, include_zero)
    assert low < high
    assert low <= min(numbers) and high >= max(numbers)
    assert not include_zero or low <= 0 <= high


@settings(deadline=None)
@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=200), st.integers(1, 50))
def test_thinning_keeps_every_point_in_one_bucket(points: list[tuple[float, float]], most: int) -> None:
    buckets = scales.thin(points, most)
    assert len(buckets) == min(most, len(points))
    assert min(bucket.low for bucket in buckets) == min(y for _, y in points)
    assert max(bucket.high for bucket in buckets) == max(y for _, y in points)
    assert all(bucket.low - 1e-6 <= bucket.mean <= bucket.high + 1e-6 for bucket in buckets)


def test_thinning_by_hand() -> None:
    assert scales.thin([(0, 1.0), (1, 3.0), (2, 5.0), (3, 11.0)], 2) == [
        scales.Bucket(0.5, 2.0, 1.0, 3.0),
        scales.Bucket(2.5, 8.0, 5.0, 11.0),
    ]
    assert scales.thin([], 5) == []
    with pytest.raises(ValueError, match="at least 1"):
        scales.thin([(0, 1.0)], 0)
