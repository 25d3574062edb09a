"""The charts of the report, each a pure function from numbers to one SVG drawing.

In: finite numbers (the caller has set overflows aside), labels, the drawing's width in CSS pixels. Out: SVG markup. Axes carry
units, series carry their names at their ends instead of a legend, and every mark has a tooltip with its exact value. Shapes
and positions tell series apart, never colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stages.reporting import svg
from stages.reporting.scales import Bucket, Scale, log_ticks, padded_domain, tick_label, tick_step, ticks

LEFT, TOP, BOTTOM = 46.0, 32.0, 38.0


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its words (with unit) and kind of scale."""

    label: str
    include_zero: bool = False
    log: bool = False
    whole: bool = False
    """Only whole numbers exist on it, so no tick falls between them."""


@dataclass(frozen=True, slots=True)
class Series:
    """A curve, already thinned. `style` is "first" or "second"; `last` is the text at its end."""

    name: str
    buckets: Sequence[Bucket]
    style: str
    last: str


@dataclass(frozen=True, slots=True)
class Level:
    """One model's score: value with interval bounds, all shares of 1, and the texts shown at it."""

    name: str
    value: float
    low: float
    high: float
    label: str
    tip: str
    rise: tuple[str, ...] = ()
    """Up to two short lines about the change from the level before."""


@dataclass(frozen=True, slots=True)
class LevelGroup:
    """Levels that follow from one another."""

    name: str
    levels: Sequence[Level]


@dataclass(frozen=True, slots=True)
class Dot:
    """One point of a scatter chart; `low`/`high` are the ends of its interval on the y axis."""

    name: str
    x: float
    y: float
    low: float
    high: float
    tip: str


def line_chart(
    title: str, x: Axis, y: Axis, series: Sequence[Series], width: float, height: float, reference: tuple[str, float] | None = None
) -> str:
    """Curves over steps, each with the range inside its buckets as a band; `reference` is a named horizontal line.

    Every series needs at least one bucket; ValueError otherwise, because an empty drawing would look like a result.
    """
    if not series or not all(item.buckets for item in series):
        raise ValueError(f"line_chart '{title}' got a series without points; expected at least one each, leave the chart out instead")
    values = [edge for item in series for bucket in item.buckets for edge in (bucket.low, bucket.high)] + (
        [reference[1]] if reference else []
    )
    right = max(svg.text_width(words) for item in series for words in (item.name, item.last)) + 14
    xs = [bucket.x for item in series for bucket in item.buckets]
    across = Scale(*(padded_domain(xs) if min(xs) == max(xs) else (min(xs), max(xs))), LEFT, width - right)
    up = Scale(*padded_domain(values, y.include_zero), height - BOTTOM, TOP)
    parts = [*_frame(across, up, x, y, width, height)]
    if reference:
        level = up(reference[1])
        anchor, place = _freer_end(series, up, level, across)
        parts += [svg.line(LEFT, level, across.end, level, "reference"), svg.text(place, level - 5, reference[0], "note", anchor)]
    for item in series:
        parts += _curve(item, across, up)
    ends = _apart([up(item.buckets[-1].mean) for item in series], 29.0, TOP, height - BOTTOM)
    for item, end in zip(series, ends, strict=True):
        parts += [svg.text(across.end + 8, end, item.name, f"name {item.style}"), svg.text(across.end + 8, end + 14, item.last, "value")]
    return svg.drawing(width, height, f"{title}. " + "; ".join(f"{item.name}: last value {item.last}" for item in series), parts)


def _freer_end(series: Sequence[Series], up: Scale, level: float, across: Scale) -> tuple[str, float]:
    """Anchor and x of the reference's name: at the end where the curves keep further away from it."""
    room = [min(abs(up(item.buckets[end].mean) - level) for item in series) for end in (0, -1)]
    return ("start", across.start + 4) if room[0] > room[1] else ("end", across.end)


def _curve(item: Series, across: Scale, up: Scale) -> list[str]:
    places = [(across(bucket.x), up(bucket.mean)) for bucket in item.buckets]
    if len(places) == 1:
        return [svg.circle(*places[0], 4, f"dot {item.style}")]
    band = [(across(bucket.x), up(bucket.high)) for bucket in item.buckets] + [
        (across(bucket.x), up(bucket.low)) for bucket in reversed(item.buckets)
    ]
    ranged = any(bucket.high > bucket.low for bucket in item.buckets)
    marks = [
        svg.circle(*place, 2.6, f"dot {item.style}", item.last if place == places[-1] else "")
        for place in (places if len(places) <= 16 else places[-1:])
    ]
    return [svg.path(band, f"band {item.style}", closed=True) if ranged else "", svg.path(places, f"curve {item.style}"), *marks]


def level_chart(title: str, y_label: str, groups: Sequence[LevelGroup], width: float, height: float) -> str:
    """Scores of consecutive models as levels of a stepped channel, from zero, with whiskers for the intervals.

    Groups stand apart, with their names below. The room for a rise is the wall between two levels, so its text shows only in
    a wide drawing and only where the wall is tall enough.
    """
    levels = [level for group in groups for level in group.levels]
    if not levels:
        raise ValueError(f"level_chart '{title}' got no levels, expected at least one")
    left, gap = 36.0, 14.0
    top = next(share for share in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0) if share >= max(level.high for level in levels) or share == 1.0)
    up = Scale(0.0, top, height - 46, 46)
    pitch = (width - left - gap * (len(groups) - 1)) / len(levels)
    parts = [svg.text(0, 12, y_label, "axis")]
    for tick in (0.0, top / 4, top / 2, top * 3 / 4, top):
        parts += [svg.line(left, up(tick), width, up(tick), "grid"), svg.text(left - 6, up(tick) + 4, f"{tick * 100:g}", "tick", "end")]
    start = left
    for group in groups:
        parts += _basin(group, start, pitch, up, height, pitch > 120)
        start += pitch * len(group.levels) + gap
    return svg.drawing(width, height, f"{title}. " + "; ".join(level.tip for level in levels), parts)


def _basin(group: LevelGroup, start: float, pitch: float, up: Scale, height: float, with_rises: bool) -> list[str]:
    edges = [start + index * pitch for index in range(len(group.levels) + 1)]
    outline = [
        corner
        for level, begin, end in zip(group.levels, edges, edges[1:], strict=False)
        for corner in ((begin, up(level.value)), (end, up(level.value)))
    ]
    floor = up(0.0)
    parts = [svg.path([(start, floor), *outline, (edges[-1], floor)], "water", closed=True), svg.path(outline, "surface")]
    parts += [
        svg.line(start, height - 20, edges[-1], height - 20, "baseline"),
        svg.text(start + (edges[-1] - start) / 2, height - 6, group.name, "note", "middle"),
    ]
    for index, level in enumerate(group.levels):
        parts += _level(level, edges[index] + pitch / 2, up, height)
        if with_rises and index and abs(up(level.value) - up(group.levels[index - 1].value)) > 40:
            middle = (up(level.value) + up(group.levels[index - 1].value)) / 2
            parts += [
                svg.text(edges[index] + 10, middle - 1 + 15 * row, words, style)
                for row, (words, style) in enumerate(zip(level.rise, ("name first", "note"), strict=False))
            ]
    return parts


def _level(level: Level, centre: float, up: Scale, height: float) -> list[str]:
    whisker = _whisker(centre, up(level.low), up(level.high))
    return [
        *whisker,
        svg.circle(centre, up(level.value), 4.5, "dot first", level.tip),
        svg.text(centre, up(level.high) - 8, level.label, "figure", "middle"),
        svg.text(centre, height - 28, level.name, "name", "middle"),
    ]


def _whisker(x: float, low: float, high: float) -> list[str]:
    return [
        svg.line(x, low, x, high, "whisker"),
        svg.line(x - 5, low, x + 5, low, "whisker"),
        svg.line(x - 5, high, x + 5, high, "whisker"),
    ]


def scatter_chart(
    title: str, x: Axis, y: Axis, dots: Sequence[Dot], width: float, height: float, reference: tuple[str, float] | None = None
) -> str:
    """Named points with intervals, such as size against quality."""
    if not dots:
        raise ValueError(f"scatter_chart '{title}' got no points, expected at least one; leave the chart out instead")
    across = Scale(
        *padded_domain([0.0, *(dot.x for dot in dots)] if x.include_zero else [dot.x for dot in dots], x.include_zero, x.log),
        LEFT,
        width - 12,
        x.log,
    )
    bounds = [edge for dot in dots for edge in (dot.low, dot.y, dot.high)] + ([reference[1]] if reference else [])
    up = Scale(*padded_domain(bounds, y.include_zero, y.log), height - BOTTOM, TOP, y.log)
    parts = [*_frame(across, up, x, y, width, height)]
    if reference:
        level = up(reference[1])
        parts += [svg.line(LEFT, level, across.end, level, "reference"), svg.text(LEFT + 6, level - 5, reference[0], "note")]
    for dot in dots:
        place, half = across(dot.x), svg.text_width(dot.name) + 10
        anchor, side = ("end", -9) if place + half > width else ("start", 9)
        if dot.low < dot.high:
            parts += _whisker(place, up(dot.low), up(dot.high))
        parts += [svg.circle(place, up(dot.y), 4.5, "dot first", dot.tip), svg.text(place + side, up(dot.y) + 4, dot.name, "name", anchor)]
    return svg.drawing(width, height, f"{title}. " + "; ".join(dot.tip for dot in dots), parts)


def bar_chart(title: str, rows: Sequence[tuple[str, float, str]], width: float) -> str:
    """Shares of one whole as horizontal bars, (name, share, text at the bar), each name above its own bar so that long names fit
    a phone. The track behind a bar is the whole."""
    if not rows or not all(0 <= share <= 1 for _, share, _ in rows):
        raise ValueError(f"bar_chart '{title}' got {list(rows)}, expected at least one row and shares from 0 to 1")
    pitch = 38.0
    parts = []
    for index, (name, share, words) in enumerate(rows):
        top = index * pitch
        parts += [
            svg.text(0, top + 13, name, "name"),
            svg.text(width, top + 13, words, "value", "end"),
            svg.rect(0, top + 19, width, 9, "track"),
            svg.rect(0, top + 19, max(1.0, share * width), 9, "bar", f"{name}: {words}"),
        ]
    return svg.drawing(width, len(rows) * pitch - 6, f"{title}. " + "; ".join(f"{name}: {words}" for name, _, words in rows), parts)


def doubling_histogram(title: str, x: Axis, y: Axis, counts: Mapping[int, int], width: float, height: float) -> str:
    """Counts of whole numbers in bins that double, {largest number of the bin: count}: 1, 2 to 3, 4 to 7, ... Empty bins between
    others are drawn as gaps, so that a step to the right is always twice the length."""
    if not any(counts.values()) or not all(top > 0 and (top + 1).bit_count() == 1 for top in counts):
        raise ValueError(f"doubling_histogram '{title}' got {dict(counts)}, expected counts of bins that end at 1, 3, 7, 15, ...")
    filled = [top.bit_length() for top, count in counts.items() if count]
    first, last = min(filled), max(filled)
    up = Scale(0.0, max(counts.values()) * 1.06, height - BOTTOM, TOP)
    pitch = (width - LEFT - 8) / (last - first + 1)
    across = Scale(first, last + 1, LEFT, LEFT + pitch * (last - first + 1))
    parts = [svg.text(0, 12, y.label, "axis"), svg.text(across.end, height - 3, x.label, "axis", "end")]
    for value, label in _ticks(up, 4, y.whole):
        parts += [svg.line(LEFT, up(value), across.end, up(value), "grid"), svg.text(LEFT - 6, up(value) + 4, label, "tick", "end")]
    for bits in range(first, last + 1):
        count = counts.get(2**bits - 1, 0)
        gap = min(3.0, pitch / 8)
        place, tip = (across(bits) + gap, up(count), pitch - 2 * gap, up.start - up(count)), f"{bin_words(2**bits - 1)}: {count:,}"
        parts += [svg.rect(*place, "bar", tip)] if count else []
    parts.append(svg.line(LEFT, up.start, across.end, up.start, "baseline"))
    every = math.ceil(max(svg.text_width(f"{2**last}") + 8, 1) / pitch)
    parts += [svg.text(across(bits), up.start + 16, f"{2 ** (bits - 1)}", "tick", "middle") for bits in range(first, last + 2, every)]
    words = ", ".join(f"{bin_words(top)} {count:,}" for top, count in sorted(counts.items()) if count)
    return svg.drawing(width, height, f"{title}. {words}", parts)


def bin_words(top: int) -> str:
    """A bin by its ends: 255 -> "128 to 255"."""
    return f"{(top + 1) // 2} to {top}" if top > 1 else "1"


def share_track(label: str, marks: Sequence[tuple[float, str]], width: float) -> str:
    """A 0 to 100 % line with one mark per model, drawn inside a table row: (share, style "hollow", "half" or "full")."""
    across, middle = Scale(0.0, 1.0, 7.0, width - 7.0), 9.0
    parts = [svg.line(across.start, middle, across.end, middle, "grid")]
    parts += [svg.line(across(tick), middle - 4, across(tick), middle + 4, "grid") for tick in (0.0, 0.5, 1.0)]
    if len(marks) > 1:
        shares = [share for share, _ in marks]
        parts.append(svg.line(across(min(shares)), middle, across(max(shares)), middle, "span"))
    parts += [mark(across(share), middle, style) for share, style in marks]
    return svg.drawing(width, 18, label, parts, "track-chart")


def mark(x: float, y: float, style: str) -> str:
    """A hollow ring, a ring with a point, or a full disc."""
    if style == "full":
        return svg.circle(x, y, 5, "dot first")
    ring = svg.circle(x, y, 4.6, "ring")
    return ring + svg.circle(x, y, 1.9, "pupil") if style == "half" else ring


def _frame(across: Scale, up: Scale, x: Axis, y: Axis, width: float, height: float) -> list[str]:
    """Grid lines, ticks, and the two axis labels (the y label above the axis, so that it reads level)."""
    parts = [svg.text(0, 12, y.label, "axis"), svg.text(across.end, height - 3, x.label, "axis", "end")]
    for value, label in _ticks(up, 5, y.whole):
        parts += [svg.line(LEFT, up(value), across.end, up(value), "grid"), svg.text(LEFT - 6, up(value) + 4, label, "tick", "end")]
    base = height - BOTTOM
    parts.append(svg.line(LEFT, base, across.end, base, "baseline"))
    for value, label in _ticks(across, max(2, int((across.end - LEFT) / 70)), x.whole):
        parts.append(svg.text(across(value), base + 16, label, "tick", "middle"))
    return parts


def _ticks(scale: Scale, most: int, whole: bool) -> list[tuple[float, str]]:
    values = log_ticks(scale.low, scale.high) if scale.log else []
    if len(values) >= 2:
        return [(value, tick_label(value, value)) for value in values]
    step = max(tick_step(scale.high - scale.low, most), 1.0 if whole else 0.0)
    return [(value, tick_label(value, step)) for value in ticks(scale.low, scale.high, step)]


def _apart(places: Sequence[float], gap: float, top: float, bottom: float) -> list[float]:
    """Move label positions apart by at least `gap`, keeping their order and staying between top and bottom where they fit."""
    order = sorted(range(len(places)), key=lambda index: (places[index], index))
    moved: list[float] = []
    for index in order:
        moved.append(max(places[index], moved[-1] + gap) if moved else max(places[index], top))
    overshoot = max(0.0, moved[-1] + 14 - bottom)
    if overshoot:
        moved[-1] -= overshoot
        for position in range(len(moved) - 2, -1, -1):
            moved[position] = min(moved[position], moved[position + 1] - gap)
    result = [0.0] * len(places)
    for position, index in enumerate(order):
        result[index] = moved[position]
    return result
