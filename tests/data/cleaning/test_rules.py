"""Rules by name: families, order, what is taken out of a text, and the real web pages."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from data.cleaning.rules import FAMILIES, PAGE_RULES, apply_rules, expand

PAGE = "Menu\nThis line is a whole sentence.\n\nThis one[3] is another whole sentence.\nHere is a third of them!\nJavascript must be turned on here."


def test_families_expand_in_order_and_single_rules_are_known() -> None:
    assert expand(["fineweb", "gopher_word_count"]) == (*FAMILIES["fineweb"], "gopher_word_count")
    assert expand(["gopher_word_count", "gopher_quality"]) == FAMILIES["gopher_quality"]
    assert expand(["c4"]).index("c4_curly_bracket") < expand(["c4"]).index("c4_open_line") < expand(["c4"]).index("c4_sentences")
    with pytest.raises(ValueError, match="unknown rule 'gophr'; expected a family .gopher_quality, gopher_repetition, c4, fineweb. or one of c4_citations"):
        expand(["gophr"])


def test_line_rules_change_the_text_and_are_counted() -> None:
    text, reason, taken = apply_rules(PAGE, expand(["c4"]))
    assert text == "This line is a whole sentence.\n\nThis one is another whole sentence.\nHere is a third of them!"
    assert reason is None and taken == {"c4_citations": 1, "c4_javascript_line": 1, "c4_open_line": 1}


def test_the_first_rule_in_the_given_order_names_the_reason() -> None:
    short = "Menu\nOne whole sentence stands here."
    assert apply_rules(short, expand(["c4", "gopher_quality"]))[1] == "c4_sentences"
    assert apply_rules(short, expand(["gopher_quality", "c4"]))[1] == "gopher_word_count"
    assert apply_rules("Menu\nHome\n\nAbout", expand(["c4_open_line", "gopher_word_count"]))[1:] == ("c4_no_lines", {"c4_open_line": 3})


def test_no_rules_change_nothing() -> None:
    assert apply_rules(PAGE, ()) == (PAGE, None, {})


def test_real_web_pages(shared_data: Path) -> None:
    """Pages that C4 kept: its page rules object to next to none of them, and every page is either kept or has one reason."""
    texts = [json.loads(line)["text"] for line in (shared_data / "web" / "c4_demo.jsonl").read_text(encoding="utf-8").splitlines()]
    reasons: dict[str, Counter] = {}
    for family, names in FAMILIES.items():
        results = [apply_rules(text, names) for text in texts]
        reasons[family] = Counter(reason for _, reason, _ in results)
        assert sum(reasons[family].values()) == len(texts) == 300 and set(reasons[family]) - {None, "c4_no_lines"} <= set(PAGE_RULES)
        assert all(text == result[0] for text, result in zip(texts, results)) or family == "c4"
    assert reasons["c4"][None] >= 285 and 150 < reasons["gopher_quality"][None] < 300, reasons
