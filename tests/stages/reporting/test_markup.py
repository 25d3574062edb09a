"""stages/reporting/markup.py: text written by a model stays text, and its control characters become visible."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.reporting import markup


class Collector(HTMLParser):
    """Tags and text of a piece of HTML."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(name)

    def handle_data(self, data: str) -> None:
        self.text += data


@settings(deadline=None)
@given(st.text())
def test_any_text_comes_back_as_text_inside_its_element(text: str) -> None:
    page = Collector()
    page.feed(markup.tag("pre", text))
    page.close()
    assert page.tags == ["pre"]
    assert page.text == markup.visible(text)


@settings(deadline=None)
@given(st.text(alphabet=st.characters(codec=None)))
def test_every_text_can_be_written_as_utf8(text: str) -> None:
    markup.escape(text).encode("utf-8")


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31m", "[U+001B][31m"),
        ("\u202eevil", "[U+202E]evil"),
        ("\x00", "[U+0000]"),
        ("\ud800", "[U+D800]"),
        ("a\tb\nc", "a\tb\nc"),
        ("\r", "[U+000D]"),
        ("\u00e9\u4e2d", "\u00e9\u4e2d"),
    ],
)
def test_unprintable_characters_are_named(raw: str, shown: str) -> None:
    assert markup.visible(raw) == shown


def test_markup_passes_and_text_is_escaped() -> None:
    inner = markup.tag("b", "1 < 2")
    assert markup.tag("p", [inner, " & <i>"]) == "<p><b>1 &lt; 2</b> &amp; &lt;i&gt;</p>"
    assert markup.tag("a", "x", class_="k", aria_label='"quoted"') == '<a class="k" aria-label="&quot;quoted&quot;">x</a>'


def test_shortened_says_what_is_missing() -> None:
    assert markup.shortened("abcdef", 6) == "abcdef"
    assert markup.shortened("abcdef", 4) == "abcd\u2026 (2 more characters)"
