"""Numbers as the report reads and shows them.

In: values from JSON and CSV files of upstream stages. Out: text for people. A number that overflowed or was never measured is
shown as such and takes part in no average, chart or comparison; it never becomes 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

MISSING = "not available"
OVERFLOW = "overflow"
# Trackers that cannot store infinity keep the largest double instead; a measurement never gets near it.
STORED_INFINITY = 1e300
NARROW_SPACE = "\u202f"


def number(raw: object) -> float:
    """Read one number: nan when absent or unreadable, +-inf when it overflowed or stands for an overflow."""
    if raw is None or isinstance(raw, bool) or raw == "":
        return math.nan
    if raw == OVERFLOW:
        return math.inf
    try:
        value = float(raw)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan
    except OverflowError:
        return math.inf if raw > 0 else -math.inf  # type: ignore[operator]  # an integer beyond the doubles
    return math.copysign(math.inf, value) if abs(value) >= STORED_INFINITY else value


def finite(values: Iterable[float]) -> list[float]:
    """The measurements among `values`."""
    return [value for value in values if math.isfinite(value)]


def unusable(value: float) -> str | None:
    """The words that replace a number which is no measurement, or None when it is one."""
    if math.isnan(value):
        return MISSING
    return None if math.isfinite(value) else OVERFLOW


def decimal(value: float, digits: int, unit: str = "") -> str:
    """1234.5678, 1 -> "1 234.6" with narrow spaces between thousands; a true minus sign; the unit after a narrow space."""
    words = unusable(value)
    if words is not None:
        return words
    text = f"{value:,.{digits}f}".replace(",", NARROW_SPACE)
    if text.startswith("-"):
        text = ("\u2212" if float(f"{value:.{digits}f}") else "") + text[1:]
    return text + (NARROW_SPACE + unit if unit else "")


def signed(value: float, digits: int, unit: str = "") -> str:
    """Like decimal, with a plus sign in front of gains."""
    text = decimal(value, digits, unit)
    return f"+{text}" if math.isfinite(value) and float(f"{value:.{digits}f}") > 0 else text


def percent(share: float, digits: int = 1) -> str:
    """0.615 -> "61.5 %"."""
    return decimal(share * 100, digits, "%")


def points(difference: float, digits: int = 1) -> str:
    """A difference of shares in percentage points: 0.18 -> "+18.0 points"."""
    return signed(difference * 100, digits, "points")


def significant(value: float, digits: int = 3) -> str:
    """`digits` significant digits; very small and very large values as powers of ten: 0.000012 -> "1.2 x 10^-5" in type."""
    words = unusable(value)
    if words is not None:
        return words
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if -4 <= exponent < 6:
        return decimal(value, max(0, digits - 1 - exponent))
    mantissa, power = f"{value:.{digits - 1}e}".split("e")
    superscript = str(int(power)).translate(
        str.maketrans("-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
    )
    return f"{mantissa.replace('-', chr(0x2212))}{NARROW_SPACE}\u00d7{NARROW_SPACE}10{superscript}"


def p_value(p: float) -> str:
    """A p-value with the precision people compare: "< 0.001", "0.004", "0.21"."""
    words = unusable(p)
    if words is not None:
        return words
    if p < 0.001:
        return f"<{NARROW_SPACE}0.001"
    return f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def count(value: float) -> str:
    """A whole number with thousands apart."""
    return decimal(value, 0)


def size(num_bytes: float) -> str:
    """Bytes in the binary unit that keeps at least one digit before the point."""
    words = unusable(num_bytes)
    if words is not None:
        return words
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= factor:
            return decimal(num_bytes / factor, 2 if num_bytes < 10 * factor else 1, unit)
    return decimal(num_bytes, 0, "bytes")
