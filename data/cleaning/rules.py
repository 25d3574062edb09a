"""Quality rules by name: families and single rules, applied in the order given.

In: text and names. Out: the text without the lines that line rules dropped, the name of the page rule that objected or None, and how
many lines or marks were taken out. To leave one rule of a family out, list the others. The families count words between spaces and
English stop words, so on text in other languages, and on program code, they drop most of it: they are for English web pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from data.cleaning.c4 import CITATIONS, LINE_RULES, PAGE_RULES_AFTER, PAGE_RULES_BEFORE, drop_citations
from data.cleaning.fineweb import FINEWEB
from data.cleaning.gopher import QUALITY, REPETITION
from data.cleaning.page import Page, Rule

PAGE_RULES: dict[str, Rule] = {**QUALITY, **REPETITION, **PAGE_RULES_BEFORE, **PAGE_RULES_AFTER, **FINEWEB}
FAMILIES: dict[str, tuple[str, ...]] = {
    "gopher_quality": tuple(QUALITY),
    "gopher_repetition": tuple(REPETITION),
    "c4": (*PAGE_RULES_BEFORE, CITATIONS, *LINE_RULES, *PAGE_RULES_AFTER),
    "fineweb": tuple(FINEWEB),
}
_SINGLE = (*PAGE_RULES, *LINE_RULES, CITATIONS)


def expand(names: Iterable[str]) -> tuple[str, ...]:
    """Single rules in order, each once. ValueError names an unknown one and lists what there is."""
    found: dict[str, None] = {}
    for name in names:
        if name not in FAMILIES and name not in _SINGLE:
            raise ValueError(f"unknown rule '{name}'; expected a family ({', '.join(FAMILIES)}) or one of {', '.join(sorted(_SINGLE))}")
        found.update(dict.fromkeys(FAMILIES.get(name, (name,))))
    return tuple(found)


def apply_rules(text: str, rules: Sequence[str]) -> tuple[str, str | None, Counter]:
    """`rules` as `expand` gives them. The reason is the first page rule that objects; a text left without lines is "c4_no_lines"."""
    page, taken = Page(text), Counter()
    for name in rules:
        if name in PAGE_RULES:
            if PAGE_RULES[name](page):
                return page.text, name, taken
            continue
        if name == CITATIONS:
            left, dropped = drop_citations(page.text)
        else:
            left, dropped = _drop_lines(page.text, name)
        if dropped:
            taken[name] += dropped
            page = Page(left)
            if not left.strip():
                return left, "c4_no_lines", taken
    return page.text, None, taken


def _drop_lines(text: str, name: str) -> tuple[str, int]:
    """The text without the lines that the rule objects to, and their number; blank lines stay, they are layout."""
    lines = text.split("\n")
    kept = [line for line in lines if not line.strip() or not LINE_RULES[name](line.strip())]
    return "\n".join(kept) if len(kept) < len(lines) else text, len(lines) - len(kept)
