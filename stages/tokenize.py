"""tokenize: documents, chats and problems -> tokenizer, token shards, report.

A byte-level BPE trained on a sample of the training text and chats; documents with a separator, chats with a supervision mask,
problems as prompts. Output: tokenizer/, {text,chat,prompts}/{train,val,test}/ in MDS format, golden.json, report.json. The bytes
depend on inputs and config alone: threads (RAYON_NUM_THREADS) only change the speed, and an interrupted run starts over.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import Field

from data.chat import CHAT_TEMPLATE, check_golden, golden_record
from data.rows import Record, Tally, chat_rows, prompt_rows, read_records, sample_texts, text_rows
from data.shards import INDEX, write_mds
from data.tokenizer import SMALLEST_VOCAB, ChatTokenizer, control_ids, fingerprint, load_tokenizer, save_tokenizer, token_dtype, train_bpe
from data.unigram import unigram_bits_per_byte
from stages.atomic import write_json
from stages.config import Section, StageError
from stages.context import Context
from stages.runner import main

SPLITS = ("train", "val", "test")


class Config(Section):
    """Settings of tokenisation."""

    vocab_size: int = Field(ge=SMALLEST_VOCAB)
    """Entries of the vocabulary, with the 256 bytes and 5 control tokens. The model has one embedding row for each."""
    min_frequency: int = Field(ge=1)
    """A pair of tokens seen less often than this in the sample is not merged."""
    sample_bytes: int = Field(ge=1)
    """About how many bytes of the prepared training files (text and chats) the tokenizer is trained on."""
    shard_size_mb: int = Field(ge=1, le=2048)
    """Largest shard file in MiB; shards are what is downloaded, cached and verified as a unit."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of record: where it comes from, how it becomes rows, which columns they have besides tokens and id."""

    source: str
    rows: Callable[[Iterable[Record], ChatTokenizer, Tally], Iterator[Record]]
    columns: dict[str, str]


KINDS = {
    "text": Kind("text", text_rows, {"num_bytes": "int64", "source": "str"}),
    "chat": Kind("chat", chat_rows, {"mask": "ndarray:uint8", "source": "str"}),
    "prompts": Kind("problems", prompt_rows, {"prompt": "str", "answer": "str", "task": "str"}),
}


def plan(cfg: Config, ctx: Context) -> dict[str, object]:
    """Sizes for the dry run."""
    files = [path for kind in KINDS.values() for split in SPLITS if (path := ctx.deps["prepare"] / kind.source / f"{split}.jsonl").is_file()]
    return {"vocab_size": cfg.vocab_size, "token_dtype": np.dtype(token_dtype(cfg.vocab_size)).name,
            "input_bytes": sum(path.stat().st_size for path in files) if files else "unknown: prepare has not run"}


def run(cfg: Config, ctx: Context) -> dict[str, float]:
    """Train the tokenizer, write the shards, report."""
    tokenizer = make_tokenizer(cfg, ctx)
    write_json(ctx.out / "golden.json", golden_record(tokenizer))
    check_golden(tokenizer, json.loads((ctx.out / "golden.json").read_text(encoding="utf-8")))
    tallies = write_shards(cfg, ctx, tokenizer)
    check_tallies(tallies, control_ids(tokenizer))
    text = tallies["text"]
    baseline = {split: unigram_bits_per_byte(text["train"].counts_V, text[split].counts_V - text[split].first_counts_V, text[split].text_bytes)
                for split in ("val", "test") if text[split].rows}
    write_json(ctx.out / "report.json", {
        "vocab_size": cfg.vocab_size, "dtype": np.dtype(token_dtype(cfg.vocab_size)).name, "control_tokens": control_ids(tokenizer),
        "unigram_bits_per_byte": baseline, "fingerprints": {**fingerprint(ctx.out / "tokenizer"), **shard_fingerprints(ctx.out)},
        **{kind: {split: tally.report() for split, tally in splits.items()} for kind, splits in tallies.items()},
    })
    spelled = sum(tally.spelled.total() for splits in tallies.values() for tally in splits.values())
    if spelled:
        ctx.note(f"{spelled:,} control tokens are spelled out in the content; they were encoded as ordinary text (report.json)")
    return {
        "text_tokens": int(text["train"].counts_V.sum()), "bytes_per_token": text["train"].text_bytes / int(text["train"].counts_V.sum()),
        "chat_tokens": int(tallies["chat"]["train"].counts_V.sum()), "supervised_tokens": tallies["chat"]["train"].supervised,
        "prompts": tallies["prompts"]["train"].rows, "spelled_control_tokens": spelled,
        **{f"unigram_bpb_{split}": value for split, value in baseline.items()},
    }


def make_tokenizer(cfg: Config, ctx: Context) -> ChatTokenizer:
    """Train, save and load back, so that what encodes here is what others will load."""
    prepare = ctx.dep("prepare")
    phases = sorted(path.parent.name for path in (prepare / "text").glob("*/train.jsonl"))
    if phases:
        raise StageError(f"prepare wrote text in the phases {', '.join(phases)}, and training takes one mixture; leave one phase, or none, in prepare.phases")
    ctx.note(f"training a byte-level BPE of {cfg.vocab_size:,} entries")
    texts = sample_texts([prepare / "text" / "train.jsonl", prepare / "chat" / "train.jsonl"], ctx.seed, cfg.sample_bytes)
    save_tokenizer(ctx.out / "tokenizer", train_bpe(texts, cfg.vocab_size, cfg.min_frequency), CHAT_TEMPLATE)
    return load_tokenizer(ctx.out / "tokenizer")


def write_shards(cfg: Config, ctx: Context, tokenizer: ChatTokenizer) -> dict[str, dict[str, Tally]]:
    """All kinds and splits; returns kind -> split -> counts."""
    inputs = {(name, split): ctx.dep("prepare") / kind.source / f"{split}.jsonl" for name, kind in KINDS.items() for split in SPLITS}
    progress = ctx.progress(sum(path.stat().st_size for path in inputs.values() if path.is_file()), "bytes", "encoding")
    tallies: dict[str, dict[str, Tally]] = {name: {} for name in KINDS}
    tokens = f"ndarray:{np.dtype(token_dtype(cfg.vocab_size)).name}"
    for (name, split), path in inputs.items():
        tally = tallies[name][split] = Tally(cfg.vocab_size)
        columns = {"tokens": tokens, "id": "str", **KINDS[name].columns}
        rows = KINDS[name].rows(read_records(path, progress.advance), tokenizer, tally)
        write_mds(ctx.out / name / split, columns, rows, cfg.shard_size_mb << 20)
    return tallies


def check_tallies(tallies: dict[str, dict[str, Tally]], control: dict[str, int]) -> None:
    """StageError where a run would train on nothing; an assertion where a control token came from anything but structure."""
    for kind in ("text", "chat"):
        if not tallies[kind]["train"].rows:
            raise StageError(f"{kind}/train has no records; expected at least one: give the prepare stage a source of {kind}")
    for split, tally in tallies["chat"].items():
        if tally.rows and not tally.supervised:
            raise StageError(f"chat/{split} has {tally.rows} chats and no supervised token; expected assistant turns: look at the roles of its source")
    for split, tally in tallies["text"].items():
        found = {token: int(tally.counts_V[index]) for token, index in control.items() if tally.counts_V[index]}
        assert sum(found.values()) == found.get("<|endoftext|>", 0) == tally.rows, f"text/{split}: {tally.rows} documents but control tokens {found}"


def shard_fingerprints(out: Path) -> dict[str, str]:
    """SHA-256 of each split's index, which holds the hash of each of its shards."""
    return {f"{kind}/{split}": hashlib.sha256((out / kind / split / INDEX).read_bytes()).hexdigest() for kind in KINDS for split in SPLITS}


if __name__ == "__main__":
    raise SystemExit(main("tokenize", Config, run, plan))
