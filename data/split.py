"""Train / validation / test: by content, so an item's split never depends on order, counts or what else is in the corpus.

In: a key (a document's content id or group, or a problem's semantic key). Out: "train", "val" or "test". Because duplicates share a key they
share a split; documents are split whole, before anything cuts them. `check_disjoint` proves it on what was written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

SPLITS = ("train", "val", "test")


def unit_interval(key: str) -> float:
    """A uniform number in [0, 1) that is a pure function of `key` (first 53 bits of its sha256)."""
    return (int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 11) / 2**53


def split_of(key: str, val_fraction: float, test_fraction: float) -> str:
    """The split that owns `key`. Raising one fraction moves keys out of train only, never between val and test."""
    position = unit_interval(key)
    if position < test_fraction:
        return "test"
    return "val" if position >= 1 - val_fraction else "train"


def check_disjoint(keys: Mapping[str, Iterable[str]], what: str) -> None:
    """ValueError naming the first key that two splits share. In: split name -> its keys."""
    owner: dict[str, str] = {}
    for split, members in keys.items():
        for key in set(members):
            if owner.setdefault(key, split) != split:
                raise ValueError(f"{what}: {key!r} is in both {owner[key]} and {split}; expected no overlap between splits")


def apportion(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Split `total` into whole counts in proportion to `weights` (largest remainder; ties go to the first name in order).

    >>> apportion(10, {"a": 1.0, "b": 1.0, "c": 1.0})
    {'a': 4, 'b': 3, 'c': 3}
    """
    whole = sum(weights.values())
    if whole <= 0 or min(weights.values()) < 0:
        raise ValueError(f"got weights {dict(weights)}; expected none below zero and a sum above zero")
    exact = {name: total * weights[name] / whole for name in sorted(weights)}
    counts = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (counts[name] - exact[name], name))
    for name in by_remainder[: total - sum(counts.values())]:
        counts[name] += 1
    return counts
