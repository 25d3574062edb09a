"""Exact de-duplication and selection to a budget, over ids and sizes only: texts stay on disk.

In: content ids in a fixed order. Out: which to keep. The survivor of a group of equal texts is the first in that order, so the
result does not depend on how many processes read the sources.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence


def content_id(text: str) -> str:
    """32 hex digits: the first 128 bits of the text's sha256. Equal texts and only they share it."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def first_occurrences(ids: Iterable[str], seen: set[str]) -> list[bool]:
    """For each id in order, whether it is new; `seen` is extended, so it carries over from source to source."""
    flags = []
    for key in ids:
        flags.append(key not in seen)
        seen.add(key)
    return flags


def fill_budget(ids: Sequence[str], sizes: Sequence[int], budget: int, seed: int) -> list[bool]:
    """Choose a random subset whose sizes add up to at most `budget`: in an order shuffled by (seed, id), each that still fits.

    A pure function of the set of (id, size) pairs. ValueError when there are documents and none fits.
    """
    order = sorted(range(len(ids)), key=lambda i: hashlib.sha256(f"{seed}/{ids[i]}".encode()).digest())
    chosen, left = [False] * len(ids), budget
    for i in order:
        if sizes[i] <= left:
            chosen[i], left = True, left - sizes[i]
    if ids and not any(chosen):
        raise ValueError(f"a budget of {budget:,} bytes holds no document (the smallest has {min(sizes):,}); raise text_tokens or cut the documents finer")
    return chosen
