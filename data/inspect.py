"""Packed rows as text for a reader's eye: where documents begin, what is trained, what is padding.

In: a PackedBatch and the tokenizer's decode. Out: lines. With colour: trained tokens green, others dim; without: what is trained stands
between «guillemets». Documents begin at a numbered mark, padding is counted. A token is trained when the token before it in its own
document predicts it. Whatever could move the cursor or colour the terminal is shown as an escape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from data.layout import IGNORE, PAD_SEGMENT, PackedBatch

TRAINED, NOT_TRAINED, MARK, HEAD, RESET = "\x1b[32m", "\x1b[2m", "\x1b[1;33m", "\x1b[1m", "\x1b[0m"
_MARGIN = "  "


def render_rows(batch: PackedBatch, decode: Callable[[Sequence[int]], str], title: str, colour: bool) -> str:
    """All rows of a batch, each under a heading with its counts."""
    return "\n".join(_render_row(batch, row, decode, f"{title}, row {row}", colour) for row in range(len(batch.tokens_BT)))


def trained_tokens(targets_T: NDArray[np.int64], segments_T: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(T,): whether the token at t is the target of the token before it in its document."""
    trained = np.zeros(len(targets_T), dtype=bool)
    trained[1:] = (targets_T[:-1] != IGNORE) & (segments_T[:-1] == segments_T[1:])
    return trained


def printable(text: str) -> str:
    """Text that neither moves the cursor nor changes colours; a line end stays one, with a mark."""
    return "".join("↵\n" + _MARGIN if char == "\n" else char if char.isprintable() else repr(char)[1:-1] for char in text)


def _render_row(batch: PackedBatch, row: int, decode: Callable[[Sequence[int]], str], title: str, colour: bool) -> str:
    tokens, segments = batch.tokens_BT[row], batch.segments_BT[row]
    trained = trained_tokens(batch.targets_BT[row], segments)
    padding = int((segments == PAD_SEGMENT).sum())
    counts = f"{len(tokens) - padding} tokens, {int(trained.sum())} trained, {segments.max() + 1} documents, {padding} padding"
    parts = [_paint(f"{title}: {counts}", HEAD, colour), "\n", _MARGIN]
    place = 0
    for (segment, flag), run in groupby(zip(segments.tolist(), trained.tolist())):
        length = len(list(run))
        if segment == PAD_SEGMENT:
            parts.append(_paint(f"⟦padding ×{length}⟧", MARK, colour))
        else:
            if place == 0 or segments[place - 1] != segment:
                parts.append(_paint(f"⟦{segment + 1}⟧", MARK, colour))
            text = printable(decode(tokens[place : place + length].tolist()))
            parts.append(_paint(text, TRAINED if flag else NOT_TRAINED, colour) if colour or not flag else f"«{text}»")
        place += length
    return "".join(parts) + "\n"


def _paint(text: str, code: str, colour: bool) -> str:
    return f"{code}{text}{RESET}" if colour else text
