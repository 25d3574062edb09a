"""A document as the quality rules see it: its words and lines, each worked out once however many rules ask.

In: text. Out: a Page. Words here are runs of non-space characters, as in the papers' counts; a rule is a pure function of a Page that
says whether it objects, and its name is the reason under which the document is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from data.cleaning.words import hash_words


class Page:
    """A text and what is derived from it."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def words(self) -> list[str]:
        """Runs of non-space characters."""
        return self.text.split()

    @cached_property
    def lines(self) -> list[str]:
        """Lines that are not blank, without the spaces around them."""
        return [line.strip() for line in self.text.split("\n") if line.strip()]

    @cached_property
    def paragraphs(self) -> list[str]:
        """Blocks between blank lines."""
        return [block.strip() for block in self.text.split("\n\n") if block.strip()]

    @cached_property
    def word_hashes(self) -> np.ndarray:
        """(N,) uint64."""
        return hash_words(list(map(str.encode, self.words)))

    @cached_property
    def word_lengths(self) -> np.ndarray:
        """(N,) int64, characters."""
        return np.fromiter(map(len, self.words), np.int64, len(self.words))


Rule = Callable[[Page], bool]


def share(flags: Sequence[bool]) -> float:
    """Share of true ones; 0 of none."""
    return sum(flags) / len(flags) if flags else 0.0


def repeated_share(items: Sequence[str]) -> float:
    """Share of the items that equal an earlier one."""
    return (len(items) - len(set(items))) / len(items) if items else 0.0


def repeated_character_share(items: Sequence[str]) -> float:
    """Share of the items' characters that stand in items equal to an earlier one."""
    whole = sum(map(len, items))
    return (whole - sum(map(len, set(items)))) / whole if whole else 0.0
