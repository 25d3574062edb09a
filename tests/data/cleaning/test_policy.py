"""Cleaning one text by the settings of its source."""

from __future__ import annotations

import pytest

from data.cleaning.contamination import build_index
from data.cleaning.policy import Cleaning, Contamination, NearDuplicates, clean

ENGLISH = "The committee met on Tuesday to talk about the new library, and everyone agreed."


def test_nothing_set_changes_nothing() -> None:
    text = "e\u0301 \x00 a@b.co"
    assert clean(text, Cleaning(), None) == (text, None, {}, ())


def test_order_and_counts() -> None:
    """Unicode first, so that a rule sees composed text; masking last, of what is kept only."""
    cleaning = Cleaning(unicode="nfc", rules=["c4_open_line"], languages=["en"], pii=["email"])
    result = clean(f"Cafe\u0301 menu\n{ENGLISH}\nWrite to a@b.co today.", cleaning, None)
    assert result == (f"{ENGLISH}\nWrite to <EMAIL> today.", None, {"normalised": 1, "c4_open_line": 1, "masked_email": 1}, ())
    assert clean("Le comit\u00e9 s'est r\u00e9uni mardi; a@b.co.", cleaning, None)[1:3] == ("language", {})


def test_contamination_names_the_items() -> None:
    index = build_index([("problems/test/1", "What is 47 + 5?")], 13)
    cleaning = Cleaning(contamination=Contamination(), pii=["email"])
    result = clean("So what is 47 + 5? Ask a@b.co", cleaning, index)
    assert result.reason == "contaminated" and result.quoted == ("problems/test/1",) and not result.changed
    assert clean("So what is 47 + 6?", cleaning, index).reason is None and clean("So what is 47 + 5?", Cleaning(rules=["c4_short_line"]), index).reason is None


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Cleaning(rules=["gopher"]), "unknown rule 'gopher'"),
    (lambda: Cleaning(languages=["english"]), "languages: no model for english; expected some of .*, en, "),
    (lambda: NearDuplicates(threshold=0), "got threshold 0, ngram 5, num_perm 128; expected 0 < threshold <= 1"),
    (lambda: NearDuplicates(threshold=0.01), "num_perm=128 finds pairs at threshold 0.01 with less than"),
    (lambda: Contamination(ngram=2), "got ngram 2, min_matches 1; expected at least 4 and 1"),
])
def test_mistakes_are_named(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
