"""Near-duplicates: documents whose word shingles overlap by at least a threshold, and the groups they form.

In: N signatures in bands (an array, in memory or mapped from disk) and a way to get one document's shingles. Out: for each document
the number of its group. Candidates come from the bands; each is verified by the exact Jaccard similarity of the two sets of shingles,
so every link is true and only the bands' chance of a miss limits recall. Groups are the connected components of the links.
Memory: 20 bytes a document (group number, band key, sort order) besides the signatures, which cost 4 x num_perm bytes a document on disk.
Legend: N documents, B bands, R rows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

import numpy as np

from data.cleaning.minhash import band_keys

_MARGIN = 0.2
"""An estimate this far under the threshold is not worth an exact look: 5.7 standard deviations at 0.8 with 128 permutations."""


class Groups:
    """Disjoint sets of 0..N-1 with the number of every member's set at hand as an array; joining relabels the smaller set."""

    def __init__(self, num: int) -> None:
        self.of_N = np.arange(num, dtype=np.int32)
        self._members: dict[int, list[int]] = {}

    def join(self, a: int, b: int) -> None:
        first, second = int(self.of_N[a]), int(self.of_N[b])
        if first == second:
            return
        large, small = sorted((first, second), key=lambda group: (-len(self.members(group)), group))
        moved = self.members(small)
        self.of_N[moved] = large
        self._members[large] = self.members(large) + moved
        self._members.pop(small, None)

    def members(self, group: int) -> list[int]:
        return self._members.get(group, [group])

    def joined(self) -> list[list[int]]:
        """The sets of at least two, each sorted, in order of their first member."""
        return sorted(sorted(members) for members in self._members.values())


class ShingleCache:
    """The last used documents' shingles, up to a number of shingles in all (8 bytes each)."""

    def __init__(self, read: Callable[[int], np.ndarray], most: int = 4_000_000) -> None:
        self._read, self._most, self._held = read, most, 0
        self._kept: OrderedDict[int, np.ndarray] = OrderedDict()

    def __call__(self, index: int) -> np.ndarray:
        if index in self._kept:
            self._kept.move_to_end(index)
            return self._kept[index]
        found = self._kept[index] = self._read(index)
        self._held += len(found)
        while self._held > self._most and len(self._kept) > 1:
            self._held -= len(self._kept.popitem(last=False)[1])
        return found


def jaccard(a: np.ndarray, b: np.ndarray) -> float:
    """|A and B| / |A or B| of two sorted arrays of distinct values, at least one of them not empty."""
    shared = len(np.intersect1d(a, b, assume_unique=True))
    return shared / (len(a) + len(b) - shared)


def find_groups(signatures_BNR: np.ndarray, threshold: float, shingles_of: Callable[[int], np.ndarray]) -> Groups:
    """Link documents that share a band and whose exact similarity is at least `threshold`.

    `shingles_of(i)` gives document i's sorted distinct shingles; it is asked for candidates only. A candidate pair is skipped only when
    it is already in one group, so the groups do not depend on the order of the documents.
    """
    groups = Groups(signatures_BNR.shape[1])
    shingles = ShingleCache(shingles_of)
    refused: set[tuple[int, int]] = set()
    for band_NR in signatures_BNR:
        for bucket in buckets(band_keys(band_NR)):
            for position in range(1, len(bucket)):
                _link(int(bucket[position]), bucket[:position], signatures_BNR, threshold, shingles, groups, refused)
    return groups


def buckets(keys_N: np.ndarray) -> Iterator[np.ndarray]:
    """The positions of each key that occurs more than once, ascending."""
    order = np.argsort(keys_N, kind="stable")
    ordered = keys_N[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))) if len(ordered) else np.empty(0, int)
    ends = np.append(starts[1:], len(ordered))
    for start, end in zip(starts[ends - starts > 1], ends[ends - starts > 1]):
        yield order[start:end]


def _link(document: int, others: np.ndarray, signatures_BNR: np.ndarray, threshold: float, shingles: ShingleCache, groups: Groups,
          refused: set[tuple[int, int]]) -> None:
    """Join `document` with those of `others` that are similar and not yet in its group."""
    apart = others[groups.of_N[others] != groups.of_N[document]]
    while len(apart):
        block, apart = apart[:512], apart[512:]
        shares = (signatures_BNR[:, block, :] == signatures_BNR[:, document, :][:, None, :]).mean(axis=(0, 2))
        for other in map(int, block[shares >= threshold - _MARGIN]):
            if groups.of_N[other] == groups.of_N[document] or (other, document) in refused:
                continue
            if jaccard(shingles(document), shingles(other)) >= threshold:
                groups.join(document, other)
            else:
                refused.add((other, document))
        apart = apart[groups.of_N[apart] != groups.of_N[document]]
