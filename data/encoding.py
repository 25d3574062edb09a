"""Prepared JSONL files -> token shards, as tasks that any number of workers share.

A file is cut into byte ranges of a fixed size; a task encodes the lines that begin in its range into shard files of its own, in a
folder that appears by one rename when all of it is on disk. The merge links the shards of all tasks, in order, into the output and
writes the index. So the output is the same bytes whatever the number of workers, and after any number of kills: finished tasks are
found again by a stamp of what they were made from (input bytes, tokenizer, settings, the code that decides the ids).
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from tokenize import COMMENT
from tokenize import tokenize as python_tokens

import numpy as np
import xxhash
from tokenizers import Tokenizer

from data.rows import Record, Tally, chat_rows, prompt_rows, read_lines, read_records, text_rows
from data.shards import ShardWriter, write_index
from data.tokenizer import ChatTokenizer, fingerprint, load_bare, token_dtype

_TASK = "task.json"
_CODE = ("chat", "columns", "encoding", "rows", "shards", "tokenizer", "words")
"""Modules of data/ that decide what the shards hold."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of record: where it comes from, how it becomes rows, which columns they have besides tokens and id."""

    source: str
    rows: Callable[[Iterable[Record], ChatTokenizer | Tokenizer, Tally], Iterator[Record]]
    columns: dict[str, str]


KINDS = {
    "text": Kind("text", text_rows, {"num_bytes": "int64", "source": "str"}),
    "chat": Kind("chat", chat_rows, {"mask": "ndarray:uint8", "source": "str"}),
    "prompts": Kind("problems", prompt_rows, {"prompt": "str", "answer": "str", "task": "str"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTask:
    """The lines of `path` that begin in bytes [start, stop), and the folder that will hold their shards. Picklable."""

    kind: str
    path: Path
    start: int
    stop: int
    folder: Path
    tokenizer: Path
    """Folder of the tokenizer."""
    vocab_size: int
    shard_bytes: int


@dataclass(frozen=True, slots=True)
class TaskDone:
    """What a finished task is counted by."""

    rows: int
    tokens: int
    input_bytes: int
    fresh: bool
    """False when an earlier attempt had done it."""


def plan_tasks(kind: str, path: Path, folder: Path, tokenizer: Path, *, vocab_size: int, shard_bytes: int, task_bytes: int) -> list[ShardTask]:
    """The tasks of one file, in order; their number depends on the file's size and task_bytes alone. ValueError when it does not exist."""
    if not path.is_file():
        raise ValueError(f"{path} does not exist; run the prepare stage again")
    size = path.stat().st_size
    starts = range(0, max(size, 1), task_bytes)
    return [ShardTask(kind=kind, path=path, start=start, stop=min(start + task_bytes, size), folder=folder / f"{number:06d}", tokenizer=tokenizer,
                      vocab_size=vocab_size, shard_bytes=shard_bytes) for number, start in enumerate(starts)]  # fmt: skip


def encode_task(task: ShardTask) -> TaskDone:
    """Make the shards of a task, or find them made. Safe to run twice, even at the same time: the first to finish counts."""
    stamp = _stamp(task)
    made = _read_task(task.folder)
    if made is not None and made["stamp"] == stamp:
        return TaskDone(made["rows"], made["tokens"], task.stop - task.start, fresh=False)
    shutil.rmtree(task.folder, ignore_errors=True)
    draft = task.folder.with_name(f"{task.folder.name}.{uuid.uuid4().hex}.draft")
    draft.mkdir(parents=True)
    kind, tally = KINDS[task.kind], Tally(task.vocab_size)
    writer = ShardWriter(draft, columns_of(task.kind, task.vocab_size), task.shard_bytes)
    for row in kind.rows(read_records(task.path, task.start, task.stop), _tokenizer(task.tokenizer, stamp["tokenizer"]), tally):
        writer.write(row)
    entries = writer.finish()
    tally.save(draft)
    record = {"stamp": stamp, "rows": tally.rows, "tokens": tally.tokens, "shards": entries}
    (draft / _TASK).write_text(json.dumps(record, sort_keys=True), encoding="utf-8")
    _publish(draft, task.folder)
    return TaskDone(tally.rows, tally.tokens, task.stop - task.start, fresh=True)


def clear_drafts(folder: Path) -> int:
    """Remove what killed workers left half-made under `folder`; returns their number. Only while no worker runs."""
    drafts = list(folder.rglob("*.draft"))
    for draft in drafts:
        shutil.rmtree(draft)
    return len(drafts)


def merge_tasks(tasks: Sequence[ShardTask], out: Path) -> Tally:
    """Put the shards of finished tasks into the new folder `out`, in the order of the tasks, and count their rows."""
    out.mkdir(parents=True)
    entries: list[dict] = []
    tally = Tally(tasks[0].vocab_size)
    for task in tasks:
        made = _read_task(task.folder)
        assert made is not None, f"task {task.folder} is not finished"
        tally.add_tally(Tally.load(task.folder))
        for entry in made["shards"]:
            name = f"shard.{len(entries):05}.mds"
            _link(task.folder / entry["raw_data"]["basename"], out / name)
            entries.append({**entry, "raw_data": {**entry["raw_data"], "basename": name}})
    write_index(out, entries)
    return tally


def columns_of(kind: str, vocab_size: int) -> dict[str, str]:
    """MDS columns of a kind of rows."""
    return {"tokens": f"ndarray:{np.dtype(token_dtype(vocab_size)).name}", "id": "str", **KINDS[kind].columns}


@cache
def code_fingerprint() -> str:
    """SHA-256 of the code that decides what the shards hold, its comments and documentation left out: those move no id."""
    digest = hashlib.sha256()
    for name in _CODE:
        digest.update(f"{name}\n{bare_source((Path(__file__).parent / f'{name}.py').read_text(encoding='utf-8'))}\n".encode())
    return digest.hexdigest()


def bare_source(source: str) -> str:
    """Python source without comments, documentation strings and blank lines."""
    lines = source.splitlines()
    for token in python_tokens(BytesIO(source.encode()).readline):
        if token.type == COMMENT:
            lines[token.start[0] - 1] = lines[token.start[0] - 1][: token.start[1]]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _stamp(task: ShardTask) -> dict[str, object]:
    digest = xxhash.xxh3_128()
    for _, line in read_lines(task.path, task.start, task.stop):
        digest.update(line)
    return {"kind": task.kind, "input": digest.hexdigest(), "tokenizer": fingerprint(task.tokenizer)["tokenizer"], "code": code_fingerprint(),
            "vocab_size": task.vocab_size, "shard_bytes": task.shard_bytes}  # fmt: skip


@cache
def _tokenizer(folder: Path, sha: str) -> Tokenizer:
    """Loaded once a worker; `sha` keeps apart what stood in the folder at different times."""
    return load_bare(folder)


def _read_task(folder: Path) -> dict | None:
    """The record of a finished task, or None."""
    path = folder / _TASK
    if not path.is_file() or not Tally.is_saved(folder):
        return None
    made = json.loads(path.read_text(encoding="utf-8"))
    infos = [entry["raw_data"] for entry in made["shards"]]
    whole = all((folder / info["basename"]).is_file() and (folder / info["basename"]).stat().st_size == info["bytes"] for info in infos)
    return made if whole else None


def _publish(draft: Path, folder: Path) -> None:
    """Everything to disk, then the rename that makes the task finished."""
    for path in [*draft.iterdir(), draft]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    try:
        os.rename(draft, folder)
    except OSError:
        if _read_task(folder) is None:
            raise
        shutil.rmtree(draft)  # a twin, started because this worker was thought dead, was faster; its bytes are the same


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)
