"""The unigram baseline against hand-worked numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from data.unigram import add_one_bits, unigram_bits_per_byte


def test_add_one_probabilities_by_hand() -> None:
    """Counts 3, 0, 1 over V = 3: (4, 1, 2) / 7, and they sum to one."""
    bits = add_one_bits(np.array([3, 0, 1]))
    assert bits == pytest.approx([math.log2(7 / 4), math.log2(7), math.log2(7 / 2)])
    assert (2.0**-bits).sum() == pytest.approx(1)


def test_bits_per_byte_by_hand() -> None:
    """Two of token 0 and one of token 1 in 5 bytes."""
    assert unigram_bits_per_byte(np.array([3, 0, 1]), np.array([2, 1, 0]), 5) == pytest.approx((2 * math.log2(7 / 4) + math.log2(7)) / 5)


def test_without_training_text_every_token_is_equally_likely() -> None:
    assert unigram_bits_per_byte(np.zeros(256, dtype=np.int64), np.full(256, 2), 512) == pytest.approx(8)


def test_an_empty_text_is_refused() -> None:
    with pytest.raises(ValueError, match="num_bytes=0"):
        unigram_bits_per_byte(np.array([1]), np.array([0]), 0)
