"""stages/reporting/page.py: one well-formed file that loads nothing and runs nothing."""

from __future__ import annotations

import re

import pytest

from stages.reporting import page
from stages.reporting.markup import Markup
from stages.reporting.page import Column, Part


def test_document_loads_nothing() -> None:
    html = page.document(
        "Run <1>", page.paragraph("fine"), [Part("data", "Data", "what & where", page.paragraph("<script>alert(1)</script>"))]
    )
    assert "<title>Run &lt;1&gt;</title>" in html
    assert "default-src &#x27;none&#x27;" in html
    assert not re.search(r"<(script|link|img|iframe|object|embed|base)\b|@import|url\(|https?://", html)
    assert '<a href="#data">Data</a>' in html and '<section id="data">' in html


def test_table_scrolls_in_its_own_box_and_names_its_rows() -> None:
    html = page.table("Sizes", [Column("format"), Column("MiB", numeric=True)], [["int8 & co", "1.5"]])
    assert html.startswith('<p class="caption">Sizes</p><div class="scroll" tabindex="0" role="region" aria-label="Sizes"><table')
    assert '<th scope="row" class="words">int8 &amp; co</th><td class="number">1.5</td>' in html


def test_table_refuses_a_ragged_row() -> None:
    with pytest.raises(ValueError, match="a row of 1 cells, expected 2"):
        page.table("Sizes", [Column("a"), Column("b")], [["only one"]])


def test_figure_offers_a_narrow_drawing() -> None:
    html = page.figure("<svg/>", "a < b", narrow="<svg id='n'/>")
    assert '<div class="wide"><svg/></div>' in html and "<div class=\"narrow\"><svg id='n'/></div>" in html
    assert "<figcaption>a &lt; b</figcaption>" in html
    assert isinstance(html, Markup)
