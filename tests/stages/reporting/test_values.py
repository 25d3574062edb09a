"""stages/reporting/values.py: numbers for people; a value that is no measurement never looks like one (MLF-03)."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.reporting import values

NS = values.NARROW_SPACE


@pytest.mark.parametrize("raw", [None, "", "nan", "not a number", "n/a", True, math.nan, {"a": 1}, [2]])
def test_mlf_03_unreadable_or_absent_is_missing(raw: object) -> None:
    assert math.isnan(values.number(raw))


@pytest.mark.parametrize(
    "raw", ["inf", "overflow", math.inf, "1e999", sys.float_info.max, "1.7976931348623157e+308", 10**400], ids=lambda raw: str(raw)[:12]
)
def test_mlf_03_infinity_and_its_stand_in_are_overflow(raw: object) -> None:
    assert values.number(raw) == math.inf


@pytest.mark.parametrize("raw", [-math.inf, "-inf", -sys.float_info.max, -(10**400)], ids=lambda raw: str(raw)[:12])
def test_mlf_03_negative_infinity_keeps_its_sign(raw: object) -> None:
    assert values.number(raw) == -math.inf


@settings(deadline=None)
@given(st.floats(min_value=-1e12, max_value=1e12))
def test_a_measurement_survives_reading(value: float) -> None:
    assert values.number(repr(value)) == value == values.number(value)


FORMATS = [
    lambda v: values.decimal(v, 2),
    lambda v: values.signed(v, 1),
    values.percent,
    values.points,
    values.significant,
    values.p_value,
    values.count,
    values.size,
]


@pytest.mark.parametrize("show", FORMATS)
def test_mlf_03_no_format_turns_overflow_into_digits(show) -> None:
    assert show(math.nan) == "not available"
    assert show(math.inf) == show(-math.inf) == "overflow"


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (values.decimal(1234567.891, 1), f"1{NS}234{NS}567.9"),
        (values.decimal(-2.5, 1), "\u22122.5"),
        (values.decimal(-0.0001, 2), "0.00"),
        (values.signed(3.0, 1), "+3.0"),
        (values.signed(0.0001, 2), "0.00"),
        (values.percent(0.6154), f"61.5{NS}%"),
        (values.points(-0.125), f"\u221212.5{NS}points"),
        (values.points(0.18), f"+18.0{NS}points"),
        (values.significant(0.0), "0"),
        (values.significant(0.012345), "0.0123"),
        (values.significant(1234.0), f"1{NS}234"),
        (values.significant(0.0000123), f"1.23{NS}\u00d7{NS}10\u207b\u2075"),
        (values.significant(2.5e9, 2), f"2.5{NS}\u00d7{NS}10\u2079"),
        (values.p_value(0.0004), f"<{NS}0.001"),
        (values.p_value(0.0412), "0.041"),
        (values.p_value(0.3), "0.30"),
        (values.size(512), f"512{NS}bytes"),
        (values.size(3.5 * 2**20), f"3.50{NS}MiB"),
        (values.size(25 * 2**30), f"25.0{NS}GiB"),
    ],
)
def test_formats(got: str, expected: str) -> None:
    assert got == expected


def test_mlf_03_finite_leaves_non_measurements_out() -> None:
    assert values.finite([1.0, math.nan, math.inf, -2.0]) == [1.0, -2.0]
