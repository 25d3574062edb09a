"""C4's page and line rules."""

from __future__ import annotations

import pytest

from data.cleaning.c4 import LINE_RULES, PAGE_RULES_AFTER, PAGE_RULES_BEFORE, drop_citations
from data.cleaning.page import Page


@pytest.mark.parametrize(("text", "objections"), [
    ("One. Two! Three?", set()),
    ("One. Two! Version 3.5 is out", {"c4_sentences"}),
    ('He said "yes." She said (no!) Then nothing.', set()),
    ("Lorem Ipsum dolor. Sit. Amet.", {"c4_lorem_ipsum"}),
    ("One. Two. f(x) { return; }.", {"c4_curly_bracket"}),
])
def test_page_rules(text: str, objections: set[str]) -> None:
    assert {name for name, rule in {**PAGE_RULES_BEFORE, **PAGE_RULES_AFTER}.items() if rule(Page(text))} == objections


@pytest.mark.parametrize(("line", "objections"), [
    ("These are five words exactly.", set()),
    ('She said to him "never again"', set()),
    ("Only four words here.", {"c4_short_line"}),
    ("These are five words exactly", {"c4_open_line"}),
    ("And so it goes on...", {"c4_open_line"}),
    ("Please enable Javascript in your browser.", {"c4_javascript_line"}),
    ("By reading on you accept our Cookie Policy.", {"c4_notice_line"}),
    ("Home", {"c4_open_line", "c4_short_line"}),
])
def test_line_rules(line: str, objections: set[str]) -> None:
    assert {name for name, rule in LINE_RULES.items() if rule(line)} == objections


def test_citation_marks() -> None:
    assert drop_citations("Fact[1][23] and claim[citation needed], list[i] and [edit].") == ("Fact and claim, list[i] and .", 4)
