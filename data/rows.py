"""Prepared records to token rows, with a tally of what went through.

In: JSONL records of documents, chats and problems, and a tokenizer. Out: rows for data/shards.py, a group at a time so that
memory does not grow with the corpus. Each function adds what it made to a Tally.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray
from tokenizers import Tokenizer

from data.chat import chat_texts, encode_chats, encode_prompts, spelled_controls
from data.tokenizer import END_OF_TEXT, ChatTokenizer, as_tokens, control_ids, plain_encoder

Record = dict[str, object]
_TALLY, _COUNTS = "tally.json", "counts.npy"
_PENDING_TOKENS = 1 << 20
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
    forced_cuts: int = 0
    """Places where a text was encoded in two pieces though a token might have spanned them: see data/words.py."""
    _counts_V: NDArray[np.int64] = field(init=False)
    _first_counts_V: NDArray[np.int64] = field(init=False)
    _pending: list[NDArray[np.unsignedinteger]] = field(default_factory=list)
    _pending_tokens: int = 0

    def __post_init__(self) -> None:
        self._counts_V, self._first_counts_V = np.zeros(self.vocab_size, np.int64), np.zeros(self.vocab_size, np.int64)

    def add(self, tokens: NDArray[np.unsignedinteger], source: str) -> None:
        """Count one row."""
        self.rows += 1
        self.longest = max(self.longest, len(tokens))
        self.lengths[len(tokens).bit_length()] += 1
        self.tokens_by_source[source] += len(tokens)
        self._pending.append(tokens)
        self._pending_tokens += len(tokens)
        if self._pending_tokens >= _PENDING_TOKENS:
            self._count_pending()

    def add_tally(self, other: Tally) -> None:
        """Count the rows of another tally of the same vocabulary."""
        self.rows, self.text_bytes, self.supervised = self.rows + other.rows, self.text_bytes + other.text_bytes, self.supervised + other.supervised
        self.longest, self.forced_cuts = max(self.longest, other.longest), self.forced_cuts + other.forced_cuts
        self.tokens_by_source.update(other.tokens_by_source)
        self.spelled.update(other.spelled)
        self.lengths.update(other.lengths)
        self._counts_V = self.counts_V + other.counts_V
        self._first_counts_V = self.first_counts_V + other.first_counts_V

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return self.tokens_by_source.total()

    @property
    def counts_V(self) -> NDArray[np.int64]:
        """Occurrences of each token."""
        self._count_pending()
        return self._counts_V

    @property
    def first_counts_V(self) -> NDArray[np.int64]:
        """Occurrences as the first token of a row, which no model predicts."""
        self._count_pending()
        return self._first_counts_V

    def _count_pending(self) -> None:
        """Many rows at a time: a count over the vocabulary for each row would cost more than its tokens."""
        if self._pending:
            self._counts_V += np.bincount(np.concatenate(self._pending), minlength=self.vocab_size)
            self._first_counts_V += np.bincount([tokens[0] for tokens in self._pending], minlength=self.vocab_size)
            self._pending, self._pending_tokens = [], 0

    def report(self) -> dict[str, object]:
        """The counts, for JSON. A key of `lengths` is the largest number of tokens that its rows may have."""
        return {
            "rows": self.rows, "tokens": self.tokens, "bytes": self.text_bytes, "supervised_tokens": self.supervised,
            "longest_row": self.longest, "tokens_by_source": dict(self.tokens_by_source), "spelled_control_tokens": dict(self.spelled),
            "forced_cuts": self.forced_cuts, "lengths": {str(2**bits - 1): rows for bits, rows in sorted(self.lengths.items())},
        }

    def save(self, folder: Path) -> None:
        """Write everything that load() needs."""
        np.save(folder / _COUNTS, np.stack([self.counts_V, self.first_counts_V]), allow_pickle=False)
        (folder / _TALLY).write_text(json.dumps(self.report(), sort_keys=True), encoding="utf-8")

    @staticmethod
    def is_saved(folder: Path) -> bool:
        """Whether load() can work."""
        return (folder / _TALLY).is_file() and (folder / _COUNTS).is_file()

    @classmethod
    def load(cls, folder: Path) -> Tally:
        """A tally that save() wrote."""
        report, counts = json.loads((folder / _TALLY).read_text(encoding="utf-8")), np.load(folder / _COUNTS, allow_pickle=False)
        tally = cls(counts.shape[1], report["rows"], report["bytes"], report["supervised_tokens"], report["longest_row"],
                    Counter(report["tokens_by_source"]), Counter(report["spelled_control_tokens"]),
                    Counter({int(top).bit_length(): rows for top, rows in report["lengths"].items()}), report["forced_cuts"])  # fmt: skip
        tally._counts_V, tally._first_counts_V = counts
        return tally


def read_records(path: Path, start: int = 0, stop: int | None = None) -> Iterator[Record]:
    """JSON objects of a JSONL file, in order: those whose lines begin in bytes [start, stop). ValueError names a line that is not one."""
    for offset, line in read_lines(path, start, stop):
        try:
            record = json.loads(line)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}, line {_line_number(path, offset)}: not JSON ({error}); run the prepare stage again") from error
        if not isinstance(record, dict):
            raise ValueError(f"{path}, line {_line_number(path, offset)}: holds {type(record).__name__}, expected an object; run the prepare stage again")
        yield record


def read_lines(path: Path, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of the lines that begin in bytes [start, stop) of a file, so that adjoining ranges share out its lines."""
    with _existing(path).open("rb") as handle:
        end = os.fstat(handle.fileno()).st_size if stop is None else stop
        if start > 0:  # a line that begins exactly at `start` is ours: look at the byte before it
            handle.seek(start - 1)
            start += len(handle.readline()) - 1
        for line in handle:
            if start >= end:
                return
            yield start, line
            start += len(line)


def _line_number(path: Path, offset: int) -> int:
    with path.open("rb") as handle:
        return 1 + sum(block.count(b"\n") for block in iter(lambda: handle.read(min(1 << 20, offset - handle.tell())), b""))


def sample_texts(paths: Sequence[Path], seed: int, sample_bytes: int) -> Iterator[str]:
    """Texts of about `sample_bytes` of records from documents and chats, whichever files they stand in.

    Whether a record is taken depends on (seed, its id) alone, so adding a source does not exchange the rest of the sample.
    """
    share = sample_bytes / max(1, sum(_existing(path).stat().st_size for path in paths))
    for path in paths:
        for record in read_records(path):
            if xxhash.xxh64_intdigest(f"{seed}/{record['id']}".encode()) < share * 2**64:
                yield from [record["text"]] if "text" in record else chat_texts(record["messages"])


def text_rows(records: Iterable[Record], tokenizer: ChatTokenizer | Tokenizer, tally: Tally) -> Iterator[Record]:
    """Documents, each with the separator <|endoftext|> as its last token."""
    end, encoder = control_ids(tokenizer)[END_OF_TEXT], plain_encoder(tokenizer)
    for group in _groups(records, lambda record: len(record["text"])):
        num_bytes = [_utf8_bytes(record) for record in group]
        forced: Counter[int] = Counter()
        for record, size, ids in zip(group, num_bytes, encoder.encode([record["text"] for record in group], forced), strict=True):
            tokens = as_tokens(np.append(ids, end), tally.vocab_size)
            tally.add(tokens, record["source"])
            tally.text_bytes += size
            tally.spelled.update(spelled_controls([record["text"]]))
            yield {"tokens": tokens, "num_bytes": size, "source": record["source"], "id": record["id"]}
        tally.forced_cuts += forced.total()


def chat_rows(records: Iterable[Record], tokenizer: ChatTokenizer | Tokenizer, tally: Tally) -> Iterator[Record]:
    """Conversations with the mask of their supervised tokens."""
    for group in _groups(records, lambda record: sum(len(message["content"]) for message in record["messages"])):
        forced: Counter[int] = Counter()
        for record, chat in zip(group, encode_chats(tokenizer, [record["messages"] for record in group], forced), strict=True):
            tokens, mask = as_tokens(chat.ids, tally.vocab_size), np.array(chat.mask, dtype=np.uint8)
            tally.add(tokens, record["source"])
            tally.supervised += int(mask.sum())
            tally.spelled.update(spelled_controls(chat_texts(record["messages"])))
            yield {"tokens": tokens, "mask": mask, "source": record["source"], "id": record["id"]}
        tally.forced_cuts += forced.total()


def prompt_rows(records: Iterable[Record], tokenizer: ChatTokenizer | Tokenizer, tally: Tally) -> Iterator[Record]:
    """Problems as a user turn followed by the header of the answer."""
    for group in _groups(records, lambda record: len(record["prompt"])):
        prompts = encode_prompts(tokenizer, [[{"role": "user", "content": record["prompt"]}] for record in group])
        for record, ids in zip(group, prompts, strict=True):
            tokens = as_tokens(ids, tally.vocab_size)
            tally.add(tokens, record["task"])
            tally.spelled.update(spelled_controls([record["prompt"]]))
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
