"""SVG elements as strings: escaping, rounding and attribute order in one place.

In: names, numbers, untrusted text. Out: SVG markup whose bytes depend on the arguments alone. Colours come from the page's
style sheet through classes, so that one drawing serves light and dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stages.reporting.markup import Markup, escape

# Width of an average glyph over the font size. Charts reserve room with it; wide enough for common sans-serif faces.
GLYPH = 0.58
TEXT_PX = 13.0


def coordinate(value: float) -> str:
    """Two decimals are finer than a screen and hide last-bit differences between maths libraries."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def element(name: str, attributes: Sequence[tuple[str, str | float]], inside: str = "") -> str:
    """One element. `inside` is markup; attribute values are escaped here."""
    pairs = "".join(f' {key}="{escape(value) if isinstance(value, str) else coordinate(value)}"' for key, value in attributes)
    return f"<{name}{pairs}>{inside}</{name}>" if inside else f"<{name}{pairs}/>"


def text(x: float, y: float, content: str, style: str, anchor: str = "start") -> str:
    """A text label; `anchor` is start, middle or end."""
    return element("text", [("x", x), ("y", y), ("class", style), ("text-anchor", anchor)], escape(content))


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return element("line", [("x1", x1), ("y1", y1), ("x2", x2), ("y2", y2), ("class", style)])


def rect(x: float, y: float, width: float, height: float, style: str, tip: str = "") -> str:
    return element("rect", [("x", x), ("y", y), ("width", width), ("height", height), ("class", style)], title(tip))


def circle(x: float, y: float, radius: float, style: str, tip: str = "") -> str:
    return element("circle", [("cx", x), ("cy", y), ("r", radius), ("class", style)], title(tip))


def path(points: Iterable[tuple[float, float]], style: str, closed: bool = False) -> str:
    """A polyline through `points`."""
    commands = " ".join(f"{'M' if index == 0 else 'L'}{coordinate(x)} {coordinate(y)}" for index, (x, y) in enumerate(points))
    return element("path", [("d", commands + ("Z" if closed else "")), ("class", style)])


def title(tip: str) -> str:
    """The tooltip of the element it is put into."""
    return f"<title>{escape(tip)}</title>" if tip else ""


def drawing(width: float, height: float, label: str, parts: Iterable[str], style: str = "chart") -> Markup:
    """The whole picture; `label` is read out in its place by a screen reader."""
    attributes = [
        ("class", style),
        ("viewBox", f"0 0 {coordinate(width)} {coordinate(height)}"),
        ("width", width),
        ("height", height),
        ("role", "img"),
        ("aria-label", label),
    ]
    return Markup(element("svg", attributes, "".join(parts)))


def text_width(content: str, size: float = TEXT_PX) -> float:
    """Room to reserve for a label, in pixels."""
    return len(content) * size * GLYPH
