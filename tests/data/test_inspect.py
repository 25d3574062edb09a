"""Rows on the terminal: boundaries and the mask visible with and without colour, nothing that could harm the terminal."""

from __future__ import annotations

import re

import numpy as np

from data.inspect import printable, render_rows, trained_tokens
from data.layout import PackedBatch
from data.packing import PackedStream
from tests.data.toy_tokens import chat


def letters(ids: list[int]) -> str:
    return "".join(chr(96 + i) for i in ids)


def batch() -> PackedBatch:
    """Two chats, abC D efG (capitals trained) and padding."""
    chats = [chat((2, 0), (2, 1)), chat((2, 0), (1, 1), first=5)]
    return PackedStream(chats, seq_len=9, rows_per_batch=1, seed=0, policy="best_fit").next()


def test_without_colour_by_hand() -> None:
    assert render_rows(batch(), letters, "chat/train", colour=False) == (
        "chat/train, row 0: 7 tokens, 3 trained, 2 documents, 2 padding\n  ⟦1⟧ab«cd»⟦2⟧ef«g»⟦padding ×2⟧\n")


def test_colour_adds_codes_and_changes_no_other_character() -> None:
    coloured = render_rows(batch(), letters, "t", colour=True)
    assert "\x1b[32mcd\x1b[0m" in coloured and "\x1b[2mab\x1b[0m" in coloured
    assert re.sub("\x1b\\[[0-9;]*m", "", coloured) == render_rows(batch(), letters, "t", colour=False).replace("«", "").replace("»", "")


def test_trained_is_what_the_loss_counts() -> None:
    """As many tokens as targets; the first of a document never, whatever the row before it predicts."""
    rows = batch()
    trained = trained_tokens(rows.targets_BT[0], rows.segments_BT[0])
    assert trained.tolist() == [False, False, True, True, False, False, True, False, False] and trained.sum() == rows.num_targets


def test_text_cannot_drive_the_terminal() -> None:
    shown = printable("a\x1b[31mred\r\x07\u202e\tb\nc")
    assert shown == "a\\x1b[31mred\\r\\x07\\u202e\\tb↵\n  c"
    assert np.all([char.isprintable() or char == "\n" for char in shown])
