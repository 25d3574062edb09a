"""Documents and chats to fixed-size training rows, in an order that depends on the seed alone.

In: a dataset with len() and [i] -> {"tokens": (n,), optionally "mask": (n,)}. Out: PackedBatch objects, endless for training
(PackedStream), or one that covers each document once (eval_rows). Each document is a segment: positions restart at 0 in it, models must
not attend across its ends, and its last token in a row is never trained to predict what follows it there.

Epoch e visits the documents in an order that is a pure function of (seed, e), for the whole global batch; a rank takes its rows
from each batch, so the number of ranks and workers changes nothing. The place in the stream is a small JSON state.

Policies:
- "sequential": documents one after the other, rows filled to the last token. A document longer than a row is first cut into
  windows of a row's length, which are shuffled like documents. A window longer than what is left of its row goes on in the next one
  as a segment of its own. What is left at the end of an epoch, less than a batch, is dropped.
- "best_fit": whole chats, longest first, each into the fullest row it fits in (best-fit decreasing; Ding et al. 2024,
  arXiv 2404.10830); rows are padded and then shuffled. A chat longer than a row is cut after its last assistant turn that fits
  whole, and left out if none does: no half answer, no end of turn where there was none. Rows short of a last batch are dropped.

Shapes: B rows per batch, T tokens per row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

IGNORE = -100
"""Target of a token whose prediction does not count."""
PAD_SEGMENT = -1
"""Segment of padding. Padding has token 0, position 0 and no target."""
Piece = tuple[int, NDArray[np.integer], "NDArray[np.integer] | None"]
"""(start in the flattened batch, tokens, mask or None): one segment."""


class Dataset(Protocol):
    """Random access to rows with "tokens" and, for chats, "mask"."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Mapping[str, object]: ...


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """B rows of T tokens, int64. targets[b, t] is the token after tokens[b, t] within its segment, or -100."""

    tokens_BT: NDArray[np.int64]
    targets_BT: NDArray[np.int64]
    positions_BT: NDArray[np.int64]
    segments_BT: NDArray[np.int64]

    @property
    def num_targets(self) -> int:
        """Tokens that the loss counts."""
        return int((self.targets_BT != IGNORE).sum())

    def rows(self, start: int, stop: int) -> PackedBatch:
        """Rows start to stop, for a rank."""
        return PackedBatch(self.tokens_BT[start:stop], self.targets_BT[start:stop], self.positions_BT[start:stop], self.segments_BT[start:stop])


class PackedStream:
    """Endless batches of rows_per_batch rows; see the module docstring for the policies.

    ValueError when the dataset does not fill one batch, or when best_fit meets rows without a mask or no supervised token.
    """

    def __init__(self, dataset: Dataset, seq_len: int, rows_per_batch: int, seed: int, policy: str) -> None:
        if seq_len < 2 or rows_per_batch < 1:
            raise ValueError(f"seq_len={seq_len}, rows_per_batch={rows_per_batch}; expected seq_len of at least 2 and at least one row")
        makers = {"sequential": _Sequential, "best_fit": _BestFit}
        if policy not in makers:
            raise ValueError(f"policy {policy!r} does not exist; expected one of {', '.join(sorted(makers))}")
        self._identity = {"policy": policy, "seed": seed, "seq_len": seq_len, "rows_per_batch": rows_per_batch, "num_documents": len(dataset)}
        self._packer = makers[policy](dataset, seq_len, rows_per_batch, seed)

    def next(self) -> PackedBatch:
        """The next batch; there always is one."""
        return self._packer.next_batch()

    def state(self) -> dict[str, int | str]:
        """Place of the next batch: a flat dict of ints and strings, ready for JSON."""
        return {**self._identity, **self._packer.place}

    def restore(self, state: Mapping[str, int | str]) -> None:
        """Go to a place that state() returned, forwards or back. ValueError when it belongs to another stream."""
        expected = {*self._identity, *self._packer.place}
        if set(state) != expected:
            raise ValueError(f"stream state has the keys {sorted(state)}; expected {sorted(expected)}: it was not saved by this kind of stream")
        other = [f"{key}={state[key]!r} (this stream: {value!r})" for key, value in self._identity.items() if state[key] != value]
        if other:
            raise ValueError(f"stream state belongs to another stream: {', '.join(other)}; resume with the same data and settings or start afresh")
        self._packer.place = {key: int(state[key]) for key in self._packer.place}

    def report(self) -> dict[str, int]:
        """What packing has cut, dropped or left out so far; for best_fit also what it leaves out of every epoch."""
        return self._packer.report()


@dataclass(frozen=True, slots=True)
class EvalRows:
    """Held-out documents as rows. num_bytes: UTF-8 bytes of their text, 0 where the dataset does not know (chats)."""

    batch: PackedBatch
    num_bytes: int
    num_documents: int


def eval_rows(dataset: Dataset, seq_len: int, max_rows: int | None = None) -> EvalRows:
    """Every document once, nothing repeated; padding has no targets.

    A document longer than a row is read in consecutive windows that share one token, the last of one being the first of the
    next, so each token but a document's first is a target exactly once (where its mask allows). max_rows stops before the first
    window that needs a further row; of a document cut there, bytes count in proportion to its tokens read. ValueError for an
    empty dataset.
    """
    if seq_len < 2 or (max_rows is not None and max_rows < 1):
        raise ValueError(f"seq_len={seq_len}, max_rows={max_rows}; expected seq_len of at least 2 and at least one row (or None for all)")
    if len(dataset) == 0:
        raise ValueError("the evaluation set has no documents; give the prepare stage more data or a larger held-out share")
    rows, pieces, num_bytes = _OpenRows(seq_len), [], 0
    for index in range(len(dataset)):
        document = dataset[index]
        tokens, mask, text_bytes = document["tokens"], document.get("mask"), int(document.get("num_bytes", 0))
        for start in range(0, max(len(tokens) - 1, 1), seq_len - 1):
            window = slice(start, start + seq_len)
            if rows.count == max_rows and not rows.has_room(len(tokens[window])):
                return EvalRows(_assemble(pieces, rows.count, seq_len), num_bytes + text_bytes * start // len(tokens), index + (start > 0))
            row, column = rows.place(len(tokens[window]))
            pieces.append((row * seq_len + column, tokens[window], None if mask is None else mask[window]))
        num_bytes += text_bytes
    return EvalRows(_assemble(pieces, rows.count, seq_len), num_bytes, len(dataset))


class Shuffled:
    """The documents of a dataset in an order that depends on the seed alone, so that the first few stand for all."""

    def __init__(self, dataset: Dataset, seed: int) -> None:
        self._dataset = dataset
        self._order = np.random.default_rng(seed).permutation(len(dataset))

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> Mapping[str, object]:
        return self._dataset[int(self._order[index])]


class _Windows:
    """Documents cut into windows of at most seq_len tokens, each an item of its own, so that one long document cannot fill whole batches."""

    def __init__(self, dataset: Dataset, seq_len: int) -> None:
        self.dataset, self.seq_len = dataset, seq_len
        lengths = [len(_read(dataset, index)[0]) for index in range(len(dataset))]
        self._places = [(index, start) for index, length in enumerate(lengths) for start in range(0, max(length, 1), seq_len)]
        self.cuts = len(self._places) - len(dataset)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> dict[str, NDArray[np.integer]]:
        document, start = self._places[index]
        tokens, mask = _read(self.dataset, document)
        window = slice(start, start + self.seq_len)
        return {"tokens": tokens[window]} if mask is None else {"tokens": tokens[window], "mask": mask[window]}


class _Sequential:
    def __init__(self, dataset: Dataset, seq_len: int, rows_per_batch: int, seed: int) -> None:
        self.num_documents = len(dataset)
        dataset = _Windows(dataset, seq_len)
        self.dataset, self.seq_len, self.rows, self.seed = dataset, seq_len, rows_per_batch, seed
        self.place = {"epoch": 0, "batch": 0, "document": 0, "offset": 0, "cuts": 0, "dropped_tokens": 0}
        self._order = _EpochOrder(len(dataset), seed)
        self._current: tuple[int, NDArray[np.integer], NDArray[np.integer] | None] | None = None
        total = 0
        for index in range(len(dataset)):
            total += len(_read(dataset, index)[0])
            if total >= rows_per_batch * seq_len:
                return
        raise ValueError(_too_small(self.num_documents, total, rows_per_batch, seq_len))

    def next_batch(self) -> PackedBatch:
        place = dict(self.place)
        pieces, filled = self._fill(place)
        if filled < self.rows * self.seq_len:  # the epoch ends here; its remainder is dropped and counted once
            place = {**self.place, "epoch": place["epoch"] + 1, "batch": 0, "document": 0, "offset": 0, "dropped_tokens": place["dropped_tokens"] + filled}
            pieces, filled = self._fill(place)
        place["batch"] += 1
        self.place = place
        return _assemble(pieces, self.rows, self.seq_len)

    def _fill(self, place: dict[str, int]) -> tuple[list[Piece], int]:
        """Take documents from `place` on, advancing it, until the batch is full or the epoch ends."""
        order, capacity = self._order.of(place["epoch"]), self.rows * self.seq_len
        pieces: list[Piece] = []
        filled = 0
        while filled < capacity and place["document"] < len(order):
            tokens, mask = self._document(int(order[place["document"]]))
            start = place["offset"]
            stop = min(len(tokens), start + self.seq_len - filled % self.seq_len)
            if stop > start:
                pieces.append((filled, tokens[start:stop], None if mask is None else mask[start:stop]))
            filled += stop - start
            if stop < len(tokens):
                place["offset"] = stop
                place["cuts"] += 1
            else:
                place["document"] += 1
                place["offset"] = 0
        return pieces, filled

    def _document(self, index: int) -> tuple[NDArray[np.integer], NDArray[np.integer] | None]:
        """The document last read is kept: a long one is asked for once per row it fills."""
        if self._current is None or self._current[0] != index:
            self._current = (index, *_read(self.dataset, index))
        return self._current[1:]

    def report(self) -> dict[str, int]:
        return {"documents": self.num_documents, "windows_cut": self.dataset.cuts, "cuts": self.place["cuts"], "dropped_tokens": self.place["dropped_tokens"]}


class _BestFit:
    def __init__(self, dataset: Dataset, seq_len: int, rows_per_batch: int, seed: int) -> None:
        self.dataset, self.seq_len, self.rows, self.seed = dataset, seq_len, rows_per_batch, seed
        self.place = {"epoch": 0, "batch": 0, "dropped_rows": 0}
        self._order = _EpochOrder(len(dataset), seed)
        self._plan: tuple[int, list[list[int]]] | None = None
        self._measure()
        self.num_rows = len(self._plan_of(0))  # the same in every epoch: it depends on the lengths alone
        if self.num_rows < rows_per_batch:
            raise ValueError(_too_small(len(dataset), int(self.kept.sum()), rows_per_batch, seq_len) + f" (they pack into {self.num_rows} rows)")

    def _measure(self) -> None:
        """Tokens kept of each chat (0 = left out), and the counts of what the rule changes."""
        self.kept = np.zeros(len(self.dataset), dtype=np.int64)
        self.cut = self.left_out = self.lost_targets = supervised = 0
        for index in range(len(self.dataset)):
            tokens, mask = _read(self.dataset, index)
            if mask is None:
                raise ValueError(f"row {index} has no 'mask'; best_fit packs chats, use the policy 'sequential' for documents")
            keep = _keep_whole_turns(mask, self.seq_len)
            self.kept[index] = keep
            self.left_out += keep == 0
            self.cut += 0 < keep < len(tokens)
            self.lost_targets += int(mask[keep:].sum())
            supervised += int(mask[:keep].sum())
        if supervised == 0:
            raise ValueError(
                f"none of {len(self.dataset)} chats has a whole assistant turn within seq_len={self.seq_len}; "
                "use a longer seq_len or check the masks of the tokenize stage"
            )

    def next_batch(self) -> PackedBatch:
        place = dict(self.place)
        if (place["batch"] + 1) * self.rows > self.num_rows:
            place = {"epoch": place["epoch"] + 1, "batch": 0, "dropped_rows": place["dropped_rows"] + self.num_rows % self.rows}
        plan = self._plan_of(place["epoch"])
        first = place["batch"] * self.rows
        pieces: list[Piece] = []
        for row, chats in enumerate(plan[first : first + self.rows]):
            column = row * self.seq_len
            for index in chats:
                tokens, mask = _read(self.dataset, index)
                keep = int(self.kept[index])
                pieces.append((column, tokens[:keep], mask[:keep]))
                column += keep
        place["batch"] += 1
        self.place = place
        return _assemble(pieces, self.rows, self.seq_len)

    def _plan_of(self, epoch: int) -> list[list[int]]:
        if self._plan is None or self._plan[0] != epoch:
            self._plan = (epoch, self._rows_of(epoch))
        return self._plan[1]

    def _rows_of(self, epoch: int) -> list[list[int]]:
        """Rows of an epoch as lists of chats: packed longest first, chats of equal length in the epoch's order, then shuffled."""
        order = self._order.of(epoch)
        order = order[self.kept[order] > 0]
        order = order[np.argsort(-self.kept[order], kind="stable")]
        packed = best_fit(self.kept[order].tolist(), self.seq_len)
        shuffled = np.random.default_rng([self.seed, epoch, 1]).permutation(len(packed))
        return [[int(order[i]) for i in packed[row]] for row in shuffled]

    def report(self) -> dict[str, int]:
        return {
            "chats": len(self.dataset), "chats_cut": int(self.cut), "chats_left_out": int(self.left_out), "lost_targets": self.lost_targets,
            "rows_per_epoch": self.num_rows, "batches_per_epoch": self.num_rows // self.rows, "dropped_rows": self.place["dropped_rows"],
        }


class _EpochOrder:
    """Document order of an epoch, a pure function of (seed, epoch); the last one asked for is kept."""

    def __init__(self, num_documents: int, seed: int) -> None:
        self.num_documents, self.seed = num_documents, seed
        self._last: tuple[int, NDArray[np.int64]] | None = None

    def of(self, epoch: int) -> NDArray[np.int64]:
        if self._last is None or self._last[0] != epoch:
            self._last = (epoch, np.random.default_rng([self.seed, epoch]).permutation(self.num_documents))
        return self._last[1]


def best_fit(lengths: list[int], capacity: int) -> list[list[int]]:
    """Put items into rows of `capacity`, in the order given, each into the fullest row that has room; returns item indices per row.

    Every length is between 1 and capacity. With lengths in descending order this is best-fit decreasing.
    """
    open_rows = _OpenRows(capacity)
    rows: list[list[int]] = []
    for item, length in enumerate(lengths):
        row, _ = open_rows.place(length)
        if row == len(rows):
            rows.append([])
        rows[row].append(item)
    return rows


class _OpenRows:
    """Rows being filled, found by room. Bit r of `rooms` is set while some row has exactly r tokens of room."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.count, self.rooms = capacity, 0, 0
        self.with_room: dict[int, list[int]] = {}

    def has_room(self, length: int) -> bool:
        """Whether an open row can take `length` tokens."""
        return self.rooms >> length != 0

    def place(self, length: int) -> tuple[int, int]:
        """(row, column) for `length` tokens, in the fullest row with room or else in a new one."""
        if not 1 <= length <= self.capacity:
            raise ValueError(f"length {length} does not fit a row; expected 1 to {self.capacity}")
        enough = self.rooms >> length
        if enough:
            room = length + (enough & -enough).bit_length() - 1
            row = self.with_room[room].pop()
            if not self.with_room[room]:
                self.rooms &= ~(1 << room)
        else:
            room, row = self.capacity, self.count
            self.count += 1
        self.with_room.setdefault(room - length, []).append(row)
        self.rooms |= 1 << (room - length)
        return row, self.capacity - room


def _keep_whole_turns(mask: NDArray[np.integer], seq_len: int) -> int:
    """Tokens of a chat to keep: all if it fits and is supervised at all, else up to the end of its last supervised run that fits."""
    if len(mask) <= seq_len:
        return len(mask) if mask.any() else 0
    ends = np.flatnonzero((mask[:-1] == 1) & (mask[1:] == 0)) + 1
    ends = np.append(ends, len(mask)) if mask[-1] == 1 else ends
    fitting = ends[ends <= seq_len]
    return int(fitting[-1]) if len(fitting) else 0


def _read(dataset: Dataset, index: int) -> tuple[NDArray[np.integer], NDArray[np.integer] | None]:
    row = dataset[int(index)]
    return row["tokens"], row.get("mask")


def _assemble(pieces: list[Piece], num_rows: int, seq_len: int) -> PackedBatch:
    """Lay pieces out in rows. No piece crosses the end of a row; within a row they are numbered from 0 in the order given."""
    size = num_rows * seq_len
    tokens, positions = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    targets, segments = np.full(size, IGNORE, dtype=np.int64), np.full(size, PAD_SEGMENT, dtype=np.int64)
    steps, in_row = np.arange(seq_len), [0] * num_rows
    for start, ids, mask in pieces:
        stop, row = start + len(ids), start // seq_len
        tokens[start:stop] = ids
        positions[start:stop] = steps[: len(ids)]
        segments[start:stop] = in_row[row]
        in_row[row] += 1
        following = ids[1:].astype(np.int64)
        targets[start : max(start, stop - 1)] = following if mask is None else np.where(mask[1:] != 0, following, IGNORE)
    shape = (num_rows, seq_len)
    return PackedBatch(tokens.reshape(shape), targets.reshape(shape), positions.reshape(shape), segments.reshape(shape))


def _too_small(num_documents: int, num_tokens: int, rows: int, seq_len: int) -> str:
    return (
        f"{num_documents} documents with {num_tokens} tokens do not fill one batch of {rows} rows x {seq_len} tokens = {rows * seq_len}; "
        "use more data, fewer rows per batch or a shorter seq_len"
    )
