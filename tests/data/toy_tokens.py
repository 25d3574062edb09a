"""A small tokenizer for tests, trained once a session on sources of the standard library, and toy datasets."""

from __future__ import annotations

import argparse
import functools
import inspect
import tempfile
import textwrap
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerFast

from data.chat import CHAT_TEMPLATE
from data.tokenizer import load_tokenizer, save_tokenizer, train_bpe

VOCAB = 600


def toy_texts() -> list[str]:
    return [inspect.getsource(argparse), inspect.getsource(textwrap)]


@functools.cache
def toy_tokenizer() -> PreTrainedTokenizerFast:
    """Trained, saved, and loaded again by transformers."""
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(Path(folder), train_bpe(toy_texts(), VOCAB, 2), CHAT_TEMPLATE)
        return load_tokenizer(Path(folder))


def documents(*lengths: int) -> list[dict]:
    """Documents with tokens 1, 2, 3, ... running on through all of them, so that every token names its place."""
    ends = np.cumsum(lengths)
    return [{"tokens": np.arange(end - n + 1, end + 1, dtype=np.uint16), "num_bytes": 3 * n} for n, end in zip(lengths, ends)]


def chat(*runs: tuple[int, int], first: int = 1) -> dict:
    """A chat of consecutive tokens made of (length, supervised?) runs."""
    mask = np.concatenate([np.full(length, flag, dtype=np.uint8) for length, flag in runs])
    return {"tokens": np.arange(first, first + len(mask), dtype=np.uint16), "mask": mask}
