"""`python -m stages.tokenize --show N`: packed rows of the finished output on the terminal. Reads, writes nothing.

Rows are those that training and evaluation see: the same lengths, policies and order (params.yaml: pretrain for text, sft for chats).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from data.inspect import render_rows
from data.layout import PackedBatch
from data.packing import PackedStream, Shuffled, eval_rows
from data.shards import MdsFolder, open_mds
from data.tokenizer import load_tokenizer
from stages.config import StageError, read_params
from stages.identity import OUT_ROOT

KINDS = {"text": "pretrain", "chat": "sft"}
"""Kind of rows -> the stage that trains on it."""
SPLITS = ("train", "val", "test")


def show(argv: list[str]) -> int:
    """Print N rows of each kind and split; exit code 0, or 2 with a message when there is nothing to show."""
    parser = argparse.ArgumentParser(prog="python -m stages.tokenize", description="Print packed rows of the finished output.")
    parser.add_argument("--show", type=int, metavar="N", required=True, help="rows of each kind and split")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="parameter file (default: params.yaml)")
    args = parser.parse_args(argv)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    try:
        if args.show < 1:
            raise StageError(f"--show got {args.show}; expected at least 1 row")
        for text in rendered(OUT_ROOT / "tokenize", read_params(args.params), args.show, colour):
            sys.stdout.write(text + "\n")
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def rendered(folder: Path, params: dict, rows: int, colour: bool) -> Iterator[str]:
    """The rows of each kind and split, one text for each."""
    if not (folder / "report.json").is_file():
        raise StageError(f"{folder} is not a finished output; make it with `dvc repro tokenize`")
    tokenizer = load_tokenizer(folder / "tokenizer")
    for kind, stage in KINDS.items():
        for split in SPLITS:
            dataset, title = open_mds(folder / kind / split), f"{kind}/{split}"
            if len(dataset) == 0:
                yield f"{title}: no rows\n"
                continue
            batch = packed(dataset, split, params[stage], params["shared"]["seed"], rows)
            yield render_rows(batch, tokenizer.decode, title, colour)


def packed(dataset: MdsFolder, split: str, settings: dict, seed: int, rows: int) -> PackedBatch:
    """The first rows of the first epoch, or of an evaluation; of a training set with fewer rows, all of them as an evaluation would see them."""
    if split == "train":
        try:
            return PackedStream(dataset, settings["seq_len"], rows, seed, settings["packing"]).next()
        except ValueError:  # fewer rows than asked for
            pass
    return eval_rows(Shuffled(dataset, seed), settings["seq_len"], max_rows=rows).batch
