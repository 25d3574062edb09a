"""C4's rules: Raffel et al. 2020, "Exploring the Limits of Transfer Learning" (JMLR 21:140), section 2.2, with the published thresholds.

In: a Page or a line. Out: whether the rule objects. Line rules drop lines and so change the text; page rules drop the document. Not
here: the list of obscene words (it is data of its own) and the removal of three-sentence spans repeated anywhere in the data set.
Sentences are counted by their closing punctuation, where the original used a trained splitter.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from data.cleaning.page import Page, Rule

_ENDS = (".", "!", "?", '"', "\u201d")
_ELLIPSES = ("...", "\u2026")
_NOTICES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
_SENTENCE_END = re.compile(r"[.!?][\"'\u201d\u2019)\]]*(?=\s|$)")
_CITATION = re.compile(r"\[(?:\d{1,4}|edit|citation needed)\]")


def lorem_ipsum(page: Page) -> bool:
    return "lorem ipsum" in page.text.lower()


def curly_bracket(page: Page) -> bool:
    """Mostly program code."""
    return "{" in page.text or "}" in page.text


def sentences(page: Page) -> bool:
    """Fewer than 3 sentences."""
    return sum(1 for _ in _SENTENCE_END.finditer(page.text)) < 3


def open_line(line: str) -> bool:
    """Does not end in . ! ? or a closing quotation mark, or ends in an ellipsis."""
    return not line.endswith(_ENDS) or line.endswith(_ELLIPSES)


def short_line(line: str) -> bool:
    """Fewer than 5 words."""
    return len(line.split()) < 5


def javascript_line(line: str) -> bool:
    return "javascript" in line.lower()


def notice_line(line: str) -> bool:
    """A notice about cookies or terms."""
    lower = line.lower()
    return any(phrase in lower for phrase in _NOTICES)


def drop_citations(text: str) -> tuple[str, int]:
    """The text without marks such as [3] or [citation needed], and how many there were."""
    return _CITATION.subn("", text)


PAGE_RULES_BEFORE: dict[str, Rule] = {"c4_lorem_ipsum": lorem_ipsum, "c4_curly_bracket": curly_bracket}
LINE_RULES: dict[str, Callable[[str], bool]] = {
    "c4_javascript_line": javascript_line,
    "c4_notice_line": notice_line,
    "c4_open_line": open_line,
    "c4_short_line": short_line,
}
CITATIONS = "c4_citations"
PAGE_RULES_AFTER: dict[str, Rule] = {"c4_sentences": sentences}
