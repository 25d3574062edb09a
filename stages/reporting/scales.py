"""Axis arithmetic: domains, round tick values and their labels, and thinning of long curves.

In: finite floats. Out: floats and short strings; nothing here knows about SVG.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stages.reporting.values import NARROW_SPACE


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps domain [low, high] to pixels [start, end], linearly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(
                f"Scale got domain [{self.low}, {self.high}] (log={self.log}); expected low < high and, for log, low > 0; "
                "widen it with padded_domain"
            )

    def __call__(self, value: float) -> float:
        low, high, at = (math.log(self.low), math.log(self.high), math.log(value)) if self.log else (self.low, self.high, value)
        return self.start + (at - low) / (high - low) * (self.end - self.start)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Several neighbouring points of a curve: mean position, mean value, and the range of the values."""

    x: float
    mean: float
    low: float
    high: float


def tick_step(span: float, most: int) -> float:
    """Smallest step of 1, 2 or 5 times a power of ten that makes at most `most` intervals over `span`."""
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))


def ticks(low: float, high: float, step: float) -> list[float]:
    """Multiples of `step` inside [low, high]."""
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten inside [low, high]; 2 and 5 times them too while there are fewer than three."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        found = [factor * 10.0**exponent for exponent in exponents for factor in factors]
        found = [value for value in found if low <= value <= high]
        if len(found) >= 3:
            break
    return found[:: max(1, math.ceil(len(found) / 6))]


def tick_label(value: float, step: float) -> str:
    """A tick as short as its step allows: 2000 -> "2k", 0.25 -> "0.25", 0.00002 -> "2e-05"."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6 or size < 1e-4:
        return f"{value:.2g}".replace("e-0", "e-").replace("e+0", "e") if size < 1e-4 else _short(value / 1e6, step / 1e6) + "M"
    return _short(value / 1e3, step / 1e3) + "k" if size >= 1e4 or (size >= 1e3 and step >= 100) else _short(value, step)


def _short(value: float, step: float) -> str:
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    text = f"{value:,.{digits}f}".replace(",", NARROW_SPACE)
    return text.replace("-", "\u2212")


def padded_domain(values: Sequence[float], include_zero: bool = False, log: bool = False) -> tuple[float, float]:
    """A domain around finite `values` with a little air; never empty, even for one value."""
    low, high = min(values), max(values)
    if log:
        return low / 1.5, high * 1.5
    if include_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        air = abs(low) * 0.1 or 1.0
        return (low - air if low < 0 or not include_zero else low), high + air
    air = (high - low) * 0.06
    return (low if include_zero and low == 0 else low - air), (high if include_zero and high == 0 else high + air)


def thin(points: Sequence[tuple[float, float]], most: int) -> list[Bucket]:
    """At most `most` buckets of equal point count. The range of each keeps spikes that its mean hides."""
    if most < 1:
        raise ValueError(f"thin got most={most}, expected at least 1")
    total = len(points)
    edges = [index * total // min(most, total) for index in range(min(most, total) + 1)] if total else [0]
    groups = [points[start:stop] for start, stop in zip(edges, edges[1:], strict=False)]
    return [_bucket(group) for group in groups]


def _bucket(group: Sequence[tuple[float, float]]) -> Bucket:
    ys = [y for _, y in group]
    return Bucket(x=math.fsum(x for x, _ in group) / len(group), mean=math.fsum(ys) / len(ys), low=min(ys), high=max(ys))
