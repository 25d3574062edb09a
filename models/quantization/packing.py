"""Dense bit packing of integer codes into int32 words, the ``weight_packed`` layout of compressed-tensors.

In: signed codes of b bits, (rows, cols). Out: int32 words (rows, ceil(cols * b / 32)). A code is shifted to unsigned by adding
2^(b-1); element i of a row takes bits [i*b, (i+1)*b) of the row's little-endian bit stream, so for widths that do not divide 32 a
code may straddle two words. Unused bits at a row's end are 0.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

WORD_BITS = 32


def pack(codes_RC: Tensor, num_bits: int) -> Tensor:
    """Pack int8 codes (rows, cols), each in [-2^(b-1), 2^(b-1) - 1], into int32 words (rows, ceil(cols * b / 32)).

    Raises ValueError for another dtype or rank, a width outside 1..8, or a code that does not fit.
    """
    _check_width(num_bits)
    if codes_RC.dtype is not torch.int8 or codes_RC.ndim != 2:
        raise ValueError(f"pack got {codes_RC.dtype} codes of shape {tuple(codes_RC.shape)}; expected int8 of shape (rows, cols)")
    offset = 1 << (num_bits - 1)
    unsigned_RC = codes_RC.cpu().numpy().astype(np.int16) + offset
    if unsigned_RC.size and (unsigned_RC.min() < 0 or unsigned_RC.max() >= 2 * offset):
        raise ValueError(
            f"pack got codes from {unsigned_RC.min() - offset} to {unsigned_RC.max() - offset}; {num_bits} bits hold {-offset} to "
            f"{offset - 1}: clamp the codes or widen the format"
        )
    num_rows, num_cols = unsigned_RC.shape
    num_words = -(-num_cols * num_bits // WORD_BITS)
    bytes_RB = unsigned_RC.astype(np.uint8)
    if num_bits != 8:
        bits_RCb = np.unpackbits(bytes_RB[:, :, None], axis=2, count=num_bits, bitorder="little")
        bytes_RB = np.packbits(bits_RCb.reshape(num_rows, num_cols * num_bits), axis=1, bitorder="little")
    padded_RB = np.zeros((num_rows, num_words * 4), dtype=np.uint8)
    padded_RB[:, : bytes_RB.shape[1]] = bytes_RB
    return torch.from_numpy(padded_RB.view("<i4").astype(np.int32))


def unpack(words_RW: Tensor, num_bits: int, num_cols: int) -> Tensor:
    """The int8 codes (rows, num_cols) that ``pack`` laid out. Raises ValueError when the words cannot hold that many columns."""
    _check_width(num_bits)
    expected_words = -(-num_cols * num_bits // WORD_BITS)
    if words_RW.dtype is not torch.int32 or words_RW.ndim != 2 or words_RW.shape[1] != expected_words:
        raise ValueError(
            f"unpack got {words_RW.dtype} words of shape {tuple(words_RW.shape)}; expected int32 of shape (rows, {expected_words}) "
            f"for {num_cols} columns of {num_bits} bits: the file's weight_shape and weight_packed disagree"
        )
    num_rows = words_RW.shape[0]
    bytes_RB = np.ascontiguousarray(words_RW.cpu().numpy().astype("<i4")).view(np.uint8)
    if num_bits == 8:
        unsigned_RC = bytes_RB[:, :num_cols]
    else:
        bits_RCb = np.unpackbits(bytes_RB, axis=1, count=num_cols * num_bits, bitorder="little").reshape(num_rows, num_cols, num_bits)
        unsigned_RC = np.packbits(bits_RCb, axis=2, bitorder="little")[:, :, 0]
    return torch.from_numpy((unsigned_RC.astype(np.int16) - (1 << (num_bits - 1))).astype(np.int8))


def _check_width(num_bits: int) -> None:
    if not 1 <= num_bits <= 8:
        raise ValueError(f"num_bits={num_bits} cannot be packed; expected 1 to 8")
