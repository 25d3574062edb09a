"""FineWeb's three rules on either side of each threshold."""

from __future__ import annotations

import pytest

from data.cleaning.fineweb import FINEWEB
from data.cleaning.page import Page


def lines(*, ended: int, open_: int) -> list[str]:
    return [f"{i} a line of well over thirty characters{'.' if i < ended else ''}" for i in range(ended + open_)]


@pytest.mark.parametrize(("text", "objections"), [
    ("\n".join(lines(ended=13, open_=87)), set()),
    ("\n".join(lines(ended=12, open_=88)), {"fineweb_line_ends"}),
    ("\n".join(lines(ended=34, open_=0) + [f"short {i}." for i in range(66)]), set()),
    ("\n".join(lines(ended=33, open_=0) + [f"short {i}." for i in range(67)]), {"fineweb_short_lines"}),
    ("\n".join(["x" * 99 + "."] * 1 + [f"{i:02d}" + "y" * 97 + "." for i in range(9)]), set()),
    ("\n".join(["x" * 99 + "."] * 2 + [f"{i:02d}" + "y" * 97 + "." for i in range(8)]), {"fineweb_repeated_line_characters"}),  # exactly 10%
])
def test_thresholds(text: str, objections: set[str]) -> None:
    assert {name for name, rule in FINEWEB.items() if rule(Page(text))} == objections
