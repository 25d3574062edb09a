"""Prepared records to token rows, with a tally of what went through.

In: JSONL records of documents, chats and problems, and a tokenizer. Out: rows for data/shards.py, a group at a time so that
memory does not grow with the corpus. Each function adds what it made to a Tally.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from data.chat import chat_texts, encode_chats, encode_prompts, spelled_controls
from data.tokenizer import END_OF_TEXT, ChatTokenizer, as_tokens, control_ids, plain_encoder

Record = dict[str, object]
_GROUP_RECORDS = 256
_GROUP_CHARS = 1 << 20


@dataclass
class Tally:
    """Counts over the rows of one split. V is the vocabulary size."""

    vocab_size: int
    rows: int = 0
    text_bytes: int = 0
    supervised: int = 0
    longest: int = 0
    tokens_by_source: Counter[str] = field(default_factory=Counter)
    spelled: Counter[str] = field(default_factory=Counter)
    """Control tokens spelled out in the content; they were encoded as ordinary text."""
    lengths: Counter[int] = field(default_factory=Counter)
    """Rows by the bit length of their number of tokens: 8 counts those of 128 to 255."""
    counts_V: NDArray[np.int64] = field(init=False)
    """Occurrences of each token."""
    first_counts_V: NDArray[np.int64] = field(init=False)
    """Occurrences as the first token of a row, which no model predicts."""

    def __post_init__(self) -> None:
        self.counts_V, self.first_counts_V = np.zeros(self.vocab_size, np.int64), np.zeros(self.vocab_size, np.int64)

    def add(self, tokens: NDArray[np.unsignedinteger], source: str) -> None:
        """Count one row."""
        self.rows += 1
        self.longest = max(self.longest, len(tokens))
        self.lengths[len(tokens).bit_length()] += 1
        self.tokens_by_source[source] += len(tokens)
        np.add.at(self.counts_V, tokens, 1)
        self.first_counts_V[tokens[0]] += 1

    def report(self) -> dict[str, object]:
        """The counts, for JSON. A key of `lengths` is the largest number of tokens that its rows may have."""
        return {
            "rows": self.rows, "tokens": int(self.counts_V.sum()), "bytes": self.text_bytes, "supervised_tokens": self.supervised,
            "longest_row": self.longest, "tokens_by_source": dict(self.tokens_by_source), "spelled_control_tokens": dict(self.spelled),
            "lengths": {str(2**bits - 1): rows for bits, rows in sorted(self.lengths.items())},
        }


def read_records(path: Path, advance: Callable[[int], None] | None = None) -> Iterator[Record]:
    """JSON objects of a JSONL file, in order; `advance` is told the bytes of each line. ValueError names a line that is not one."""
    with _existing(path).open("rb") as handle:
        for number, line in enumerate(handle, 1):
            try:
                record = json.loads(line)
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error}); run the prepare stage again") from error
            if not isinstance(record, dict):
                raise ValueError(f"{path}, line {number}: holds {type(record).__name__}, expected an object; run the prepare stage again")
            yield record
            if advance is not None:
                advance(len(line))


def sample_texts(paths: Sequence[Path], seed: int, sample_bytes: int) -> Iterator[str]:
    """Texts of about `sample_bytes` of records from documents and chats, whichever files they stand in.

    Whether a record is taken depends on (seed, its id) alone, so adding a source does not exchange the rest of the sample.
    """
    share = sample_bytes / max(1, sum(_existing(path).stat().st_size for path in paths))
    for path in paths:
        for record in read_records(path):
            if xxhash.xxh64_intdigest(f"{seed}/{record['id']}".encode()) < share * 2**64:
                yield from [record["text"]] if "text" in record else chat_texts(record["messages"])


def text_rows(records: Iterable[Record], tokenizer: ChatTokenizer, tally: Tally) -> Iterator[Record]:
    """Documents, each with the separator <|endoftext|> as its last token."""
    end, encoder = control_ids(tokenizer)[END_OF_TEXT], plain_encoder(tokenizer)
    for group in _groups(records, lambda record: len(record["text"])):
        num_bytes = [_utf8_bytes(record) for record in group]
        for record, size, ids in zip(group, num_bytes, encoder.encode([record["text"] for record in group]), strict=True):
            tokens = as_tokens(np.append(ids, end), tally.vocab_size)
            tally.add(tokens, record["source"])
            tally.text_bytes += size
            tally.spelled += spelled_controls([record["text"]])
            yield {"tokens": tokens, "num_bytes": size, "source": record["source"], "id": record["id"]}


def chat_rows(records: Iterable[Record], tokenizer: ChatTokenizer, tally: Tally) -> Iterator[Record]:
    """Conversations with the mask of their supervised tokens."""
    for group in _groups(records, lambda record: sum(len(message["content"]) for message in record["messages"])):
        for record, chat in zip(group, encode_chats(tokenizer, [record["messages"] for record in group]), strict=True):
            tokens, mask = as_tokens(chat.ids, tally.vocab_size), np.array(chat.mask, dtype=np.uint8)
            tally.add(tokens, record["source"])
            tally.supervised += int(mask.sum())
            tally.spelled += spelled_controls(chat_texts(record["messages"]))
            yield {"tokens": tokens, "mask": mask, "source": record["source"], "id": record["id"]}


def prompt_rows(records: Iterable[Record], tokenizer: ChatTokenizer, tally: Tally) -> Iterator[Record]:
    """Problems as a user turn followed by the header of the answer."""
    for group in _groups(records, lambda record: len(record["prompt"])):
        prompts = encode_prompts(tokenizer, [[{"role": "user", "content": record["prompt"]}] for record in group])
        for record, ids in zip(group, prompts, strict=True):
            tokens = as_tokens(ids, tally.vocab_size)
            tally.add(tokens, record["task"])
            tally.spelled += spelled_controls([record["prompt"]])
            yield {"tokens": tokens, "prompt": record["prompt"], "answer": record["answer"], "task": record["task"], "id": record["id"]}


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f"{path} does not exist; run the prepare stage again")
    return path


def _utf8_bytes(record: Record) -> int:
    if not record["text"]:
        raise ValueError(f"document {record['id']!r} is empty; expected prepare to leave empty documents out, run it again")
    try:
        return len(record["text"].encode("utf-8"))
    except UnicodeEncodeError as error:
        raise ValueError(f"document {record['id']!r} holds half a surrogate pair at character {error.start}, which is no text; remove it in prepare") from error


def _groups(records: Iterable[Record], size_of: Callable[[Record], int]) -> Iterator[list[Record]]:
    """Lists of consecutive records, each closed when it holds enough characters or records."""
    group: list[Record] = []
    size = 0
    for record in records:
        group.append(record)
        size += size_of(record)
        if size >= _GROUP_CHARS or len(group) >= _GROUP_RECORDS:
            yield group
            group, size = [], 0
    if group:
        yield group
