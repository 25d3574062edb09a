"""FineWeb's own rules: Penedo et al. 2024, "The FineWeb Datasets" (arXiv 2406.17557), section 3.6, with the published thresholds.

In: a Page. Out: whether the rule objects. The three remove lists, menus and boilerplate that Gopher's and C4's rules leave.
"""

from __future__ import annotations

from data.cleaning.page import Page, Rule, repeated_character_share, share

_TERMINAL = (".", "!", "?", '"', "'", "\u201d", "\u2019", "\u2026", ";", ":", "\u3002", "\uff01", "\uff1f", "\u061f", "\u0964", "\u06d4")
_SHORT_LINE = 30


def line_ends(page: Page) -> bool:
    """At most 12% of lines end in punctuation."""
    return share([line.endswith(_TERMINAL) for line in page.lines]) <= 0.12


def repeated_line_characters(page: Page) -> bool:
    """At least 10% of the lines' characters stand in repeated lines."""
    return repeated_character_share(page.lines) >= 0.1


def short_lines(page: Page) -> bool:
    """At least 67% of lines have fewer than 30 characters."""
    return share([len(line) < _SHORT_LINE for line in page.lines]) >= 0.67


FINEWEB: dict[str, Rule] = {
    "fineweb_line_ends": line_ends,
    "fineweb_repeated_line_characters": repeated_line_characters,
    "fineweb_short_lines": short_lines,
}
