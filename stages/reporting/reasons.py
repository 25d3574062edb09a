"""Why records were dropped and what was changed in them, in words.

In: the reasons that prepare counts by. Out: words for people. A reason that is words already, such as what does not fit a record's
format, is shown as it stands.
"""

from __future__ import annotations

DROPPED = {
    "empty": "empty",
    "undecodable": "undecodable",
    "contaminated": "quotes a held-out question or text",
    "duplicate": "exact duplicate",
    "near_duplicate": "near-duplicate of a longer one",
    "over_budget": "over its share",
    "over_cap": "over its cap",
    "language": "in another language",
    "gopher_word_count": "fewer than 50 or more than 100\u202f000 words (Gopher)",
    "gopher_word_length": "mean word length outside 3 to 10 (Gopher)",
    "gopher_symbols": "too many # or ellipses (Gopher)",
    "gopher_bullets": "mostly bullets (Gopher)",
    "gopher_ellipses": "many lines end in an ellipsis (Gopher)",
    "gopher_letters": "many words without a letter (Gopher)",
    "gopher_stop_words": "too few English stop words (Gopher)",
    "gopher_repeated_lines": "repeated lines (Gopher)",
    "gopher_repeated_paragraphs": "repeated paragraphs (Gopher)",
    "gopher_repeated_line_characters": "much text in repeated lines (Gopher)",
    "gopher_repeated_paragraph_characters": "much text in repeated paragraphs (Gopher)",
    **{f"gopher_top_{n}_gram": f"one phrase of {n} words all over (Gopher)" for n in (2, 3, 4)},
    **{f"gopher_repeated_{n}_grams": f"repeated phrases of {n} words (Gopher)" for n in range(5, 11)},
    "c4_lorem_ipsum": "placeholder text (C4)",
    "c4_curly_bracket": "holds a curly bracket (C4)",
    "c4_no_lines": "no line left after the line rules (C4)",
    "c4_sentences": "fewer than 3 sentences (C4)",
    "fineweb_line_ends": "few lines end in punctuation (FineWeb)",
    "fineweb_repeated_line_characters": "much text in repeated lines (FineWeb)",
    "fineweb_short_lines": "mostly short lines (FineWeb)",
}
"""In the order in which they are listed."""
OF_RECORDS = {"contaminated": "asks what another split holds"}
"""Words that differ for chats, preferences and prompts."""
CHANGED = {
    "normalised": "documents brought to one Unicode form",
    "control_characters": "control characters removed",
    "replacement_characters": "replacement characters found, and kept",
    "c4_citations": "citation marks removed (C4)",
    "c4_javascript_line": "lines about JavaScript removed (C4)",
    "c4_notice_line": "lines of terms or cookie notices removed (C4)",
    "c4_open_line": "lines without an end of sentence removed (C4)",
    "c4_short_line": "lines of fewer than 5 words removed (C4)",
    "masked_email": "e-mail addresses masked",
    "masked_phone": "phone numbers masked",
    "masked_ip": "IP addresses masked",
    "masked_key": "keys and passwords masked",
}


def words_of(reason: str, of_records: bool = False) -> str:
    """Words for a reason of dropping."""
    return (OF_RECORDS if of_records else {}).get(reason) or DROPPED.get(reason, reason)


def ordered(names: set[str], known: dict[str, str]) -> list[str]:
    """Known names in their order, then the others by name."""
    order = list(known)
    return sorted(names, key=lambda name: (order.index(name) if name in known else len(order), name))
