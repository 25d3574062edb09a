"""The weakest language model worth beating: tokens drawn independently by their training frequency.

In: token counts of the training text. Out: bits per byte of a held-out text, the floor that a trained model must get under.
Add-one smoothing: Laplace's rule of succession; see Manning and Schuetze 1999, section 6.2.2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def add_one_bits(train_counts_V: NDArray[np.int64]) -> NDArray[np.float64]:
    """Code length of each token in bits: -log2((c_v + 1) / (N + V)), N = sum of counts, V = vocabulary size. Shape (V,)."""
    return np.log2(train_counts_V.sum() + len(train_counts_V)) - np.log2(train_counts_V + 1.0)


def unigram_bits_per_byte(train_counts_V: NDArray[np.int64], target_counts_V: NDArray[np.int64], num_bytes: int) -> float:
    """Bits per UTF-8 byte of a text whose tokens to be predicted occur target_counts_V times.

    A model predicts every token of a document but its first (nothing stands before it), so count those and no others, and give
    the bytes of the whole text: then the figure compares with a model's. ValueError for an empty text.
    """
    if num_bytes <= 0:
        raise ValueError(f"num_bytes={num_bytes}; expected a text of at least one byte to measure bits per byte on")
    return float(target_counts_V @ add_one_bits(train_counts_V)) / num_bytes
