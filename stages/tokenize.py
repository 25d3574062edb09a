"""tokenize: documents, chats and problems -> tokenizer, token shards, report.

A byte-level BPE trained on a sample of the training text and chats; documents with a separator, chats with a supervision mask,
problems as prompts. Output: tokenizer/, {text,chat,prompts}/{train,val,test}/ in MDS format, golden.json, report.json. The bytes
depend on inputs and config alone: `workers` and `executor` only change the speed, and an interrupted run continues with the shards
it had not finished.

`python -m stages.tokenize --show N` prints N packed rows of each split of the finished output instead, and writes nothing.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
from pydantic import Field

from data.chat import CHAT_TEMPLATE, check_golden, golden_record
from data.encoding import KINDS, ShardTask, TaskDone, clear_drafts, code_fingerprint, encode_task, merge_tasks, plan_tasks
from data.pool import Pool, check_pool, run_tasks
from data.rows import Tally, sample_texts
from data.shards import INDEX
from data.tokenizer import SMALLEST_VOCAB, ChatTokenizer, control_ids, fingerprint, load_tokenizer, save_tokenizer, token_dtype, train_bpe
from data.unigram import unigram_bits_per_byte
from stages.atomic import write_json
from stages.config import StageError
from stages.context import Context
from stages.runner import main
from stages.showing import show
from stages.workers import Workers

SPLITS = ("train", "val", "test")


class Config(Workers):
    """Settings of tokenisation."""

    vocab_size: int = Field(ge=SMALLEST_VOCAB)
    """Entries of the vocabulary, with the 256 bytes and 5 control tokens. The model has one embedding row for each."""
    min_frequency: int = Field(ge=1)
    """A pair of tokens seen less often than this in the sample is not merged."""
    sample_bytes: int = Field(ge=1)
    """About how many bytes of the prepared training files (text and chats) the tokenizer is trained on."""
    shard_size_mb: int = Field(ge=1, le=2048)
    """Largest shard file in MiB; shards are what is downloaded, cached and verified as a unit."""
    task_size_mb: int = Field(ge=1)
    """MiB of prepared text that one task encodes: what is lost at most, per worker, by a kill. Every task begins a new shard."""


def plan(cfg: Config, ctx: Context) -> dict[str, object]:
    """Sizes for the dry run."""
    files = [path for kind in KINDS.values() for split in SPLITS if (path := ctx.deps["prepare"] / kind.source / f"{split}.jsonl").is_file()]
    return {"vocab_size": cfg.vocab_size, "token_dtype": np.dtype(token_dtype(cfg.vocab_size)).name,
            "input_bytes": sum(path.stat().st_size for path in files) if files else "unknown: prepare has not run"}


def run(cfg: Config, ctx: Context) -> dict[str, float]:
    """Train the tokenizer, write the shards, report."""
    check_pool(cfg.pool())
    tokenizer = make_tokenizer(cfg, ctx)
    write_json(ctx.out / "golden.json", golden_record(tokenizer))
    check_golden(tokenizer, json.loads((ctx.out / "golden.json").read_text(encoding="utf-8")))
    tallies = write_shards(cfg, ctx)
    check_tallies(tallies, control_ids(tokenizer))
    text = tallies["text"]
    baseline = {split: unigram_bits_per_byte(text["train"].counts_V, text[split].counts_V - text[split].first_counts_V, text[split].text_bytes)
                for split in ("val", "test") if text[split].rows}
    write_json(ctx.out / "report.json", {
        "vocab_size": cfg.vocab_size, "dtype": np.dtype(token_dtype(cfg.vocab_size)).name, "control_tokens": control_ids(tokenizer),
        "unigram_bits_per_byte": baseline, "fingerprints": {**fingerprint(ctx.out / "tokenizer"), "code": code_fingerprint(), **shard_fingerprints(ctx.out)},
        **{kind: {split: tally.report() for split, tally in splits.items()} for kind, splits in tallies.items()},
    })
    spelled = sum(tally.spelled.total() for splits in tallies.values() for tally in splits.values())
    if spelled:
        ctx.note(f"{spelled:,} control tokens are spelled out in the content; they were encoded as ordinary text (report.json)")
    forced = sum(tally.forced_cuts for splits in tallies.values() for tally in splits.values())
    if forced:
        ctx.note(f"{forced:,} cuts in texts that have no place to cut for 2 Mi characters; tokens there may differ from those of the whole text (report.json)")
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
    texts = [prepare / "text" / "train.jsonl", prepare / "chat" / "train.jsonl"]
    kept, stamp = ctx.work / "tokenizer", sample_stamp(cfg, ctx, texts)
    if not all((kept / name).is_file() for name in (stamp, "tokenizer.json", "tokenizer_config.json")):  # else an interrupted run made it
        shutil.rmtree(kept, ignore_errors=True)
        ctx.note(f"training a byte-level BPE of {cfg.vocab_size:,} entries")
        save_tokenizer(kept, train_bpe(sample_texts(texts, ctx.seed, cfg.sample_bytes), cfg.vocab_size, cfg.min_frequency), CHAT_TEMPLATE)
        (kept / stamp).touch()
    shutil.copytree(kept, ctx.out / "tokenizer", ignore=lambda folder, names: [stamp])
    return load_tokenizer(ctx.out / "tokenizer")


def sample_stamp(cfg: Config, ctx: Context, texts: list[Path]) -> str:
    """Name of the marker that says from what the kept tokenizer was trained."""
    settings = json.dumps([cfg.vocab_size, cfg.min_frequency, cfg.sample_bytes, ctx.seed, CHAT_TEMPLATE, code_fingerprint()])
    digest = hashlib.sha256(settings.encode())
    for path in texts:
        if not path.is_file():
            raise StageError(f"{path} does not exist; run the prepare stage again")
        with path.open("rb") as handle:
            digest.update(hashlib.file_digest(handle, "sha256").digest())
    return digest.hexdigest()


def write_shards(cfg: Config, ctx: Context) -> dict[str, dict[str, Tally]]:
    """All kinds and splits; returns kind -> split -> counts. Tasks that an interrupted run finished are taken over."""
    work = ctx.work / "tasks"
    clear_drafts(work)
    plans = {(name, split): plan_tasks(name, ctx.dep("prepare") / kind.source / f"{split}.jsonl", work / name / split, ctx.work / "tokenizer",
                                       vocab_size=cfg.vocab_size, shard_bytes=cfg.shard_size_mb << 20, task_bytes=cfg.task_size_mb << 20)
             for name, kind in KINDS.items() for split in SPLITS}
    encode(cfg, ctx, [task for tasks in plans.values() for task in tasks])
    tallies: dict[str, dict[str, Tally]] = {name: {} for name in KINDS}
    for (name, split), tasks in plans.items():
        tallies[name][split] = merge_tasks(tasks, ctx.out / name / split)
    return tallies


def encode(cfg: Config, ctx: Context, tasks: list[ShardTask]) -> None:
    """Run the tasks; too little work for a pool to pay is done in this process."""
    total = sum(task.stop - task.start for task in tasks)
    progress = ctx.progress(total, "bytes", "encoding")
    reused = 0

    def done(result: TaskDone) -> None:
        nonlocal reused
        reused += not result.fresh
        progress.advance(result.input_bytes, documents=result.rows, tokens=result.tokens)

    pool = cfg.pool()
    if pool.executor == "processes" and total <= cfg.task_size_mb << 20:
        pool = Pool(1)
    run_tasks(encode_task, [(task,) for task in tasks], pool, done)
    if reused:
        ctx.note(f"{reused} of {len(tasks)} tasks were already done")


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
    raise SystemExit(show(sys.argv[1:]) if "--show" in sys.argv else main("tokenize", Config, run, plan))
