"""Gopher's rules: Rae et al. 2021, "Scaling Language Models" (arXiv 2112.11446), appendix A1.1, with the published thresholds.

In: a Page. Out: whether the rule objects. Quality: length, word length, symbols, bullets, ellipses, letters, stop words. Repetition
(table A1): lines, paragraphs and n-grams that occur more than once. Where the paper leaves room: repeats are counted after their first
occurrence, a character under overlapping n-grams is counted once, and the most frequent n-gram counts only when it occurs twice.
Legend: N words, M n-grams.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from data.cleaning.page import Page, Rule, repeated_character_share, repeated_share, share
from data.cleaning.words import distinct, hash_ngrams

STOP_WORDS = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})
_ELLIPSES = ("...", "\u2026")
_BULLETS = ("-", "*", "\u2022", "\u2023", "\u25e6", "\u2043")
_EDGES = ".,;:!?\"'()[]{}\u201c\u201d\u2018\u2019"
TOP_NGRAM_SHARES = {2: 0.20, 3: 0.18, 4: 0.16}
REPEATED_NGRAM_SHARES = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}


def word_count(page: Page) -> bool:
    """Fewer than 50 words or more than 100,000."""
    return not 50 <= len(page.words) <= 100_000


def word_length(page: Page) -> bool:
    """Mean word length outside 3 to 10 characters."""
    return len(page.words) > 0 and not 3 <= page.word_lengths.mean() <= 10


def symbols(page: Page) -> bool:
    """More than one # or one ellipsis for ten words."""
    ellipses = sum(map(page.text.count, _ELLIPSES))
    return max(page.text.count("#"), ellipses) > 0.1 * len(page.words)


def bullets(page: Page) -> bool:
    """More than 90% of lines start with a bullet."""
    return share([line.startswith(_BULLETS) for line in page.lines]) > 0.9


def ellipses(page: Page) -> bool:
    """More than 30% of lines end with an ellipsis."""
    return share([line.endswith(_ELLIPSES) for line in page.lines]) > 0.3


def letters(page: Page) -> bool:
    """Less than 80% of words hold a letter."""
    return len(page.words) > 0 and share([any(map(str.isalpha, word)) for word in page.words]) < 0.8


def stop_words(page: Page) -> bool:
    """Fewer than two different ones of eight common English words."""
    return len(STOP_WORDS.intersection(word.lower().strip(_EDGES) for word in page.words)) < 2


def repeated_lines(page: Page) -> bool:
    return repeated_share(page.lines) > 0.30


def repeated_paragraphs(page: Page) -> bool:
    return repeated_share(page.paragraphs) > 0.30


def repeated_line_characters(page: Page) -> bool:
    return repeated_character_share(page.lines) > 0.20


def repeated_paragraph_characters(page: Page) -> bool:
    return repeated_character_share(page.paragraphs) > 0.20


def top_ngram(page: Page, n: int) -> bool:
    return top_ngram_share(page, n) > TOP_NGRAM_SHARES[n]


def repeated_ngrams(page: Page, n: int) -> bool:
    return repeated_ngram_share(page, n) > REPEATED_NGRAM_SHARES[n]


def top_ngram_share(page: Page, n: int) -> float:
    """Share of the words' characters that stand in the most frequent n-gram (of equally frequent ones, the one that covers most)."""
    ngrams_M = hash_ngrams(page.word_hashes, n)
    if len(distinct(ngrams_M)) == len(ngrams_M):
        return 0.0
    _, first, which_M, counts = np.unique(ngrams_M, return_index=True, return_inverse=True, return_counts=True)
    characters_M = np.convolve(page.word_lengths, np.ones(n, np.int64), "valid")
    longest = np.lexsort((first, -characters_M[first], -counts))[0]
    return _covered_share(page, np.flatnonzero(which_M == longest), n)


def repeated_ngram_share(page: Page, n: int) -> float:
    """Share of the words' characters that stand in n-grams seen before in the document."""
    ngrams_M = hash_ngrams(page.word_hashes, n)
    if len(distinct(ngrams_M)) == len(ngrams_M):
        return 0.0
    _, first = np.unique(ngrams_M, return_index=True)
    again_M = np.ones(len(ngrams_M), bool)
    again_M[first] = False
    return _covered_share(page, np.flatnonzero(again_M), n)


def _covered_share(page: Page, starts: np.ndarray, n: int) -> float:
    """Characters of the words in any [start, start + n), as a share of all words' characters."""
    covered_N = np.zeros(len(page.words), bool)
    for offset in range(n):
        covered_N[starts + offset] = True
    return float(page.word_lengths[covered_N].sum() / max(1, page.word_lengths.sum()))


QUALITY: dict[str, Rule] = {
    "gopher_word_count": word_count,
    "gopher_word_length": word_length,
    "gopher_symbols": symbols,
    "gopher_bullets": bullets,
    "gopher_ellipses": ellipses,
    "gopher_letters": letters,
    "gopher_stop_words": stop_words,
}
REPETITION: dict[str, Rule] = {
    "gopher_repeated_lines": repeated_lines,
    "gopher_repeated_paragraphs": repeated_paragraphs,
    "gopher_repeated_line_characters": repeated_line_characters,
    "gopher_repeated_paragraph_characters": repeated_paragraph_characters,
    **{f"gopher_top_{n}_gram": partial(top_ngram, n=n) for n in TOP_NGRAM_SHARES},
    **{f"gopher_repeated_{n}_grams": partial(repeated_ngrams, n=n) for n in REPEATED_NGRAM_SHARES},
}
