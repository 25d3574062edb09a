"""De-contamination: documents that hold n-grams of an evaluation item, after Brown et al. 2020 (arXiv 2005.14165), appendix C.

In: evaluation items (id, text) and documents. Out: which items a document quotes. An item of at least n words is known by its n-grams,
a shorter one by its whole text; one of fewer than four words could be met by chance and is counted as too short to look for. Case and
punctuation are ignored, operators before a number are not. Costs 12 bytes for each distinct n-gram of the items.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from data.cleaning.words import distinct, hash_ngrams, hash_words, maths_words

SHORTEST_ITEM = 4


@dataclass(frozen=True, slots=True)
class EvaluationIndex:
    """What to look for: for each length in words, sorted hashes and the number of the item that has each (the first of several)."""

    ngram: int
    hashes: dict[int, np.ndarray]
    owners: dict[int, np.ndarray]
    items: tuple[str, ...]
    """Ids of the items."""
    too_short: int
    """Items left out because they have fewer than SHORTEST_ITEM words."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """What a document shares with the items."""

    matches: int
    """Distinct n-grams of the document, and whole short items in it."""
    whole_items: int
    """Short items that stand in it whole."""
    items: tuple[str, ...]
    """Ids of the matched items, in the items' order."""


def build_index(items: Iterable[tuple[str, str]], ngram: int) -> EvaluationIndex:
    """`items` as (id, text). A text may come under several ids, and an id with several texts."""
    found: dict[int, list[tuple[np.ndarray, int]]] = defaultdict(list)
    ids: list[str] = []
    too_short = 0
    for number, (key, text) in enumerate(items):
        ids.append(key)
        hashes = hash_words(maths_words(text))
        if len(hashes) < SHORTEST_ITEM:
            too_short += 1
            continue
        length = min(ngram, len(hashes))
        found[length].append((hash_ngrams(hashes, length), number))
    columns = {length: _sorted(parts) for length, parts in sorted(found.items())}
    return EvaluationIndex(ngram, {length: hashes for length, (hashes, _) in columns.items()}, {length: owners for length, (_, owners) in columns.items()},
                           tuple(ids), too_short)


def _sorted(parts: list[tuple[np.ndarray, int]]) -> tuple[np.ndarray, np.ndarray]:
    hashes = np.concatenate([part for part, _ in parts])
    owners = np.concatenate([np.full(len(part), number, np.int32) for part, number in parts])
    distinct, first = np.unique(hashes, return_index=True)
    return distinct, owners[first]


def overlap(text: str, index: EvaluationIndex) -> Overlap:
    """What `text` shares with the items of the index."""
    words = hash_words(maths_words(text))
    matches, whole, owners = 0, 0, []
    for length, known in index.hashes.items():
        grams = distinct(hash_ngrams(words, length))
        places = np.minimum(np.searchsorted(known, grams), len(known) - 1)
        hits = places[known[places] == grams]
        matches += len(hits)
        whole += len(hits) if length < index.ngram else 0
        owners.append(index.owners[length][hits])
    numbers = np.unique(np.concatenate(owners)) if owners else []
    return Overlap(matches, whole, tuple(dict.fromkeys(index.items[number] for number in numbers)))


def is_contaminated(found: Overlap, min_matches: int) -> bool:
    """A whole short item, or at least `min_matches` n-grams."""
    return found.whole_items > 0 or found.matches >= min_matches
