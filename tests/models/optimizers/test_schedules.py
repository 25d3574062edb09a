"""Schedules: hand-worked curves, and properties over random runs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.optimizers.schedules import constant, cosine, linear, make_schedule, wsd


def curve(schedule, total):
    return [schedule(step) for step in range(total)]


def test_wsd_by_hand():
    """10 updates, 4 warm up, the last round(0.3 * 10) = 3 decay on a ramp of 4 steps."""
    assert curve(lambda s: wsd(s, 10, 4, 0.3), 10) == [0.25, 0.5, 0.75, 1, 1, 1, 1, 0.75, 0.5, 0.25]


def test_cosine_by_hand():
    """Peak at index 1, then quarter periods of half a cosine down to 0.2, which index 5 would have."""
    expected = [0.5, 1, 0.2 + 0.8 * 0.8535534, 0.6, 0.2 + 0.8 * 0.1464466]
    assert curve(lambda s: cosine(s, 5, 2, 0.2), 5) == pytest.approx(expected, abs=1e-6)


def test_linear_by_hand():
    """Peak at index 1, then down by a quarter of 0.8 an update, towards the 0.2 of index 5."""
    assert curve(lambda s: linear(s, 5, 2, 0.2), 5) == pytest.approx([0.5, 1, 0.8, 0.6, 0.4])
    assert curve(lambda s: linear(s, 4, 0, 0.0), 4) == [1, 0.75, 0.5, 0.25]


def test_constant_by_hand():
    assert curve(lambda s: constant(s, 5, 2), 5) == [0.5, 1, 1, 1, 1]
    assert curve(lambda s: constant(s, 3, 0), 3) == [1, 1, 1]


@pytest.mark.parametrize(("name", "options"), [("wsd", {"decay_fraction": 0.3}), ("cosine", {"final_fraction": 0.1}), ("linear", {"final_fraction": 0.1})])
def test_ckpt_06_a_resumed_run_continues_on_the_same_curve(name, options):
    """Warm-up 10, resume at step 50: the rate depends on the index alone, so no scheduler state can be missing."""
    unbroken = curve(make_schedule(name, total=100, warmup=10, **options), 100)
    resumed = make_schedule(name, total=100, warmup=10, **options)
    assert [resumed(step) for step in range(50, 100)] == unbroken[50:]
    assert unbroken[9] == 1.0 and unbroken[8] == 0.9


runs = st.integers(1, 300).flatmap(lambda total: st.tuples(st.just(total), st.integers(0, total)))


@settings(deadline=None)
@given(run=runs, fraction=st.floats(0, 1))
def test_properties(run, fraction):
    """In (0, 1], rises to exactly 1 at the warm-up's last update, never rises after it."""
    total, warmup = run
    decay = fraction * (total - warmup) / total
    if warmup + round(decay * total) > total:
        return
    for schedule in (
        make_schedule("constant", total=total, warmup=warmup),
        make_schedule("cosine", total=total, warmup=warmup, final_fraction=fraction),
        make_schedule("linear", total=total, warmup=warmup, final_fraction=fraction),
        make_schedule("wsd", total=total, warmup=warmup, decay_fraction=decay),
    ):
        values = curve(schedule, total)
        peak = max(warmup, 1) - 1
        assert all(0 < v <= 1 for v in values)
        assert warmup == 0 or values[peak] == 1.0
        assert values[: peak + 1] == sorted(values[: peak + 1])
        assert values[peak:] == sorted(values[peak:], reverse=True)


@settings(deadline=None)
@given(total=st.integers(2, 300))
def test_decay_over_the_whole_run_has_no_dead_update(total):
    values = curve(lambda s: wsd(s, total, 0, 1.0), total)
    assert values[-1] == pytest.approx(1 / (total + 1)) and values[0] == pytest.approx(total / (total + 1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wsd(0, 10, 6, 0.5), "got warmup=6 and 5 decaying updates"),
        (lambda: wsd(0, 10, 0, 1.5), "decay_fraction: got 1.5"),
        (lambda: cosine(0, 10, 0, -0.1), "final_fraction: got -0.1"),
        (lambda: linear(0, 10, 0, 1.1), "final_fraction: got 1.1"),
        (lambda: constant(10, 10, 0), "got update index 10, expected 0 to 9"),
        (lambda: constant(-1, 10, 0), "got update index -1"),
        (lambda: constant(0, 10, 11), "got warmup=11"),
        (lambda: make_schedule("steps", total=1, warmup=0), "got 'steps', expected one of constant, cosine, linear, wsd"),
        (lambda: make_schedule("wsd", total=1, warmup=0), r"'wsd': got \[\], expected exactly \['decay_fraction'\]"),
        (lambda: make_schedule("cosine", total=1, warmup=0, decay_fraction=0.1), "'cosine'"),
        (lambda: make_schedule("linear", total=1, warmup=0, decay_fraction=0.1, final_fraction=0.1), "'linear'.*set the others to null"),
        (lambda: make_schedule("wsd", total=10, warmup=6, decay_fraction=0.5), "warmup=6"),
    ],
)
def test_bad_values_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
