"""Mixing: how much of each source, in which phase, and how often.

In: weights or sizes, a temperature, phases, repeat caps. Out: budgets, and for each document of a source the phase that trains on it in
each pass. Temperature: share_s = x_s^(1/T) / sum x^(1/T), x a weight or, without weights, a source's size; T = 1 keeps the
proportions, a higher one brings them closer together (Raffel et al. 2020, JMLR 21:140, section 3.5.2; Devlin's multilingual BERT).
Phases follow each other in training, each with its own mixture (Qwen3 technical report, arXiv 2505.09388, section 3.2).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One stretch of training with a mixture of its own."""

    name: str
    targets: Mapping[str, int]
    """Source name -> UTF-8 bytes wanted of it; a source that is absent takes no part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BySize:
    """Shares that follow from how much usable text each source turns out to have."""

    total_bytes: int
    temperature: float

    def targets(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Bytes wanted of each source."""
        return {name: round(self.total_bytes * share) for name, share in temperature_shares(sizes, self.temperature).items()}


def temperature_shares(amounts: Mapping[str, float], temperature: float) -> dict[str, float]:
    """Shares that add up to one. ValueError for a temperature or an amount that is not above zero.

    >>> temperature_shares({"a": 9, "b": 1}, 2.0)
    {'a': 0.75, 'b': 0.25}
    """
    if temperature <= 0 or min(amounts.values()) <= 0:
        raise ValueError(f"got temperature {temperature} and amounts {dict(amounts)}; expected all above zero")
    # relative to the largest, so that a low temperature underflows to 0 instead of overflowing
    largest = max(amounts.values())
    scaled = {name: (amount / largest) ** (1 / temperature) for name, amount in amounts.items()}
    whole = sum(scaled.values())
    return {name: value / whole for name, value in scaled.items()}


def whole_passes(train_bytes: int, wanted_bytes: int, cap: int) -> int:
    """How often a source is used, whole: as often as fits into what is wanted, at least once, at most `cap` times."""
    return max(1, min(cap, wanted_bytes // train_bytes)) if train_bytes else 1


def deal(ids: Sequence[str], sizes: Sequence[int], weights: Sequence[float], passes: int, seed: int) -> np.ndarray:
    """(passes, documents) int: the phase of each document in each pass, so that phases get bytes in proportion to `weights`.

    The passes are laid end to end in an order shuffled by (seed, id); each document goes to the phase in whose stretch its middle
    lies, so a phase is off by less than one document at either end. No document is left out.
    """
    if len(weights) == 1:
        return np.zeros((passes, len(ids)), np.int64)
    order = sorted(range(len(ids)), key=lambda i: hashlib.sha256(f"{seed}/phase/{ids[i]}".encode()).digest())
    ordered = np.tile(np.asarray(sizes, np.float64)[order], passes)
    middles = np.cumsum(ordered) - ordered / 2
    shares = np.cumsum(np.asarray(weights, np.float64)) / sum(weights)
    phases = np.searchsorted(shares[:-1] * ordered.sum(), middles, side="right")
    dealt = np.empty((passes, len(ids)), np.int64)
    dealt[:, order] = phases.reshape(passes, len(ids))
    return dealt
