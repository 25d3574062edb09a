"""Gopher's rules against texts on either side of each published threshold."""

from __future__ import annotations

import pytest

from data.cleaning.gopher import QUALITY, REPETITION, repeated_ngram_share, top_ngram_share
from data.cleaning.page import Page

PROSE = " ".join(f"the word{i} and" for i in range(20))  # 60 words


def quality(text: str) -> set[str]:
    return {name for name, rule in QUALITY.items() if rule(Page(text))}


def repetition(text: str) -> set[str]:
    return {name for name, rule in REPETITION.items() if rule(Page(text))}


def distinct_words(count: int, prefix: str = "wo") -> list[str]:
    return [f"{prefix}{i:03d}" for i in range(count)]


@pytest.mark.parametrize(("text", "objections"), [
    (PROSE, set()),
    ("the and " + "word " * 48, set()),  # 50 words
    ("the and " + "word " * 47, {"gopher_word_count"}),  # 49
    ("the and " + "word " * 99_999, {"gopher_word_count"}),
    ("the and " + "x " * 100, {"gopher_word_length"}),
    ("the and " + "abcdefghijk " * 100, {"gopher_word_length"}),  # mean 10.84
    (PROSE + " # # # # # #", set()),  # 6 marks, 66 words: 0.09
    (PROSE + " # # # # # # #", {"gopher_symbols"}),  # 7 of 67: 0.104
    (PROSE.replace("word", "...", 7), {"gopher_symbols"}),
    ("\n".join(f"- {PROSE}" for _ in range(9)) + "\nend", set()),  # 9 of 10 lines
    ("\n".join(f"\u2022 {PROSE}" for _ in range(10)) + "\n\n", {"gopher_bullets"}),
    ("\n".join([PROSE] * 7 + [PROSE + " \u2026"] * 3), set()),  # 30% of lines
    ("\n".join([PROSE] * 6 + [PROSE + "..."] * 4), {"gopher_ellipses"}),
    ("the and " + "word " * 46 + "1234 " * 12, set()),  # 48 of 60 words have a letter
    ("the and " + "word " * 45 + "1234 " * 13, {"gopher_letters"}),
    ("the The, the. " + "word " * 60, {"gopher_stop_words"}),  # one stop word, three times
    ("", {"gopher_word_count", "gopher_stop_words"}),
])
def test_quality(text: str, objections: set[str]) -> None:
    assert quality(text) == objections


def test_a_clean_text_passes_every_repetition_rule() -> None:
    assert repetition("\n\n".join(" ".join(distinct_words(30, f"p{i}")) for i in range(5))) == set() == repetition("")


def test_repeated_lines_and_paragraphs() -> None:
    lines = [f"{i} {'x' * 40}" for i in range(7)]
    assert repetition("\n".join(lines + ["s", "s", "s", "s"])) == set()  # 3 of 11 lines, few characters
    assert repetition("\n".join([*lines[:6], "s", "s", "s", "s"])) == set()  # 3 of 10 is not above 30%
    assert repetition("\n".join([*lines[:5], "s", "s", "s", "s"])) == {"gopher_repeated_lines"}  # 3 of 9
    assert repetition("\n\n".join([*lines[:5], "s", "s", "s", "s"])) >= {"gopher_repeated_lines", "gopher_repeated_paragraphs"}
    long = "a line that says the same"
    assert "gopher_repeated_line_characters" in repetition("\n".join([*lines[:4], long, long, long]))  # 50 of 243 characters
    assert "gopher_repeated_line_characters" not in repetition("\n".join([*lines[:5], long, long]))  # 25 of 260
    assert "gopher_repeated_paragraph_characters" in repetition("\n\n".join([*lines[:4], long, long, long]))


def test_top_ngram_share_by_hand() -> None:
    page = Page("aa bb cc aa bb dd eeee ffff")  # 20 characters; "aa bb" twice: 8
    assert top_ngram_share(page, 2) == 0.4
    assert top_ngram_share(page, 3) == 0.0  # no 3-gram comes twice
    assert top_ngram_share(Page("x x x x"), 2) == 1.0  # overlapping ones count a character once
    assert top_ngram_share(Page("a b long longer a b long longer"), 2) == 20 / 24  # of equally frequent ones the longest: "long longer"
    assert top_ngram_share(Page("one"), 2) == 0.0


def test_repeated_ngram_share_by_hand() -> None:
    five = "aa bb cc dd ee"
    page = Page(f"{five} ff {five} gg")  # 24 characters; the second five words repeat the first: 10
    assert repeated_ngram_share(page, 5) == 10 / 24 and repeated_ngram_share(page, 6) == 0.0
    assert repeated_ngram_share(Page("one two"), 5) == 0.0


@pytest.mark.parametrize(("n", "limit"), [(2, 0.20), (3, 0.18), (4, 0.16)])
def test_top_ngram_thresholds(n: int, limit: float) -> None:
    """An n-gram that comes 40 times among words of its own length makes up just under or just over the limit."""
    for total, objects in ((int(40 * n / limit) + 1, False), (int(40 * n / limit) - 1, True)):
        often = [word for i in range(40) for word in (*distinct_words(n), f"f{i:04d}")]
        text = " ".join(often + distinct_words(total - len(often), "ze"))
        assert (f"gopher_top_{n}_gram" in repetition(text)) == objects, top_ngram_share(Page(text), n)


@pytest.mark.parametrize(("n", "limit"), [(5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10)])
def test_repeated_ngram_thresholds(n: int, limit: float) -> None:
    """A passage of n words that comes again makes up just under or just over the limit of the words."""
    passage = distinct_words(n, "p")
    for total, objects in ((int(2 * n / limit) + 2, False), (int(n / limit) - 2, True)):
        text = " ".join([*passage, *distinct_words(total - 2 * n, "z"), *passage])
        assert (f"gopher_repeated_{n}_grams" in repetition(text)) == objects
