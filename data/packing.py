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
  whole, and left out if none does: no half answer, no end of turn where there was none. Documents (rows without a mask) are cut into
  windows like above. Rows short of a last batch are dropped.
- "none": as best_fit, but every chat or window has a row to itself.

Shapes: B rows per batch, T tokens per row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from data.layout import OpenRows, PackedBatch, Piece, assemble, best_fit
from data.shards import MdsFolder

_READ = ("tokens", "mask")


class Dataset(Protocol):
    """Random access to rows with "tokens" and, for chats, "mask"."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Mapping[str, object]: ...


class PackedStream:
    """Endless batches of rows_per_batch rows; see the module docstring for the policies.

    ValueError when the dataset does not fill one batch, or when best_fit or none meets chats without a supervised token.
    """

    def __init__(self, dataset: Dataset, seq_len: int, rows_per_batch: int, seed: int, policy: str) -> None:
        if seq_len < 2 or rows_per_batch < 1:
            raise ValueError(f"seq_len={seq_len}, rows_per_batch={rows_per_batch}; expected seq_len of at least 2 and at least one row")
        makers = {"sequential": _Sequential, "best_fit": partial(_WholeItems, pack=True), "none": partial(_WholeItems, pack=False)}
        if policy not in makers:
            raise ValueError(f"policy {policy!r} does not exist; expected one of {', '.join(sorted(makers))}")
        self._identity = {"policy": policy, "seed": seed, "seq_len": seq_len, "rows_per_batch": rows_per_batch, "num_documents": len(dataset)}
        self._dataset, self.rows_per_batch, self._seq_len = dataset, rows_per_batch, seq_len
        self._packer = makers[policy](dataset, seq_len, rows_per_batch, seed)

    def next(self) -> PackedBatch:
        """The next batch; there always is one."""
        return self.build(self.plan())

    def plan(self) -> list[Slot]:
        """Decide the next batch from lengths alone and go past it; cheap, so that several threads can build what one plans."""
        return self._packer.next_slots()

    def build(self, slots: list[Slot], first_row: int = 0, last_row: int | None = None) -> PackedBatch:
        """Read and lay out a planned batch, or its rows [first_row, last_row); safe in any thread."""
        pieces: list[Piece] = []
        last_row = self.rows_per_batch if last_row is None else last_row
        begin, end = first_row * self._seq_len, last_row * self._seq_len
        last, tokens, mask = -1, None, None
        for slot in slots:
            if not begin <= slot.start < end:
                continue
            if slot.document != last:  # a long document fills several rows
                last = slot.document
                tokens, mask = _read(self._dataset, last)
            pieces.append((slot.start - begin, tokens[slot.first : slot.stop], None if mask is None else mask[slot.first : slot.stop]))
        return assemble(pieces, last_row - first_row, self._seq_len)

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

    def report(self, state: Mapping[str, int | str] | None = None) -> dict[str, int | float]:
        """What packing has cut, dropped or left out so far, and of an epoch, by share: padding of all places in its rows, documents
        (of all) that do not stay in one piece, tokens (of all) that no row holds. For sequential these are those of the first epoch.
        state: the place up to which to count, if not the present one."""
        return self._packer.report(self._packer.place if state is None else state)


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
    rows, pieces, num_bytes = OpenRows(seq_len), [], 0
    for index in range(len(dataset)):
        document = dataset[index]
        tokens, mask, text_bytes = document["tokens"], document.get("mask"), int(document.get("num_bytes", 0))
        for start in range(0, max(len(tokens) - 1, 1), seq_len - 1):
            window = slice(start, start + seq_len)
            if rows.count == max_rows and not rows.has_room(len(tokens[window])):
                return EvalRows(assemble(pieces, rows.count, seq_len), num_bytes + text_bytes * start // len(tokens), index + (start > 0))
            row, column = rows.place(len(tokens[window]))
            pieces.append((row * seq_len + column, tokens[window], None if mask is None else mask[window]))
        num_bytes += text_bytes
    return EvalRows(assemble(pieces, rows.count, seq_len), num_bytes, len(dataset))


class Shuffled:
    """The documents of a dataset in an order that depends on the seed alone, so that the first few stand for all."""

    def __init__(self, dataset: Dataset, seed: int) -> None:
        self._dataset = dataset
        self._order = np.random.default_rng(seed).permutation(len(dataset))

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> Mapping[str, object]:
        return self._dataset[int(self._order[index])]


@dataclass(frozen=True, slots=True)
class Slot:
    """Tokens [first, stop) of a document, and where they begin in the flattened batch."""

    start: int
    document: int
    first: int
    stop: int


class _Windows:
    """Documents cut into windows of at most seq_len tokens, each an item of its own, so that one long document cannot fill whole batches."""

    def __init__(self, lengths: NDArray[np.int64], seq_len: int) -> None:
        counts = -(-np.maximum(lengths, 1) // seq_len)
        self.document = np.repeat(np.arange(len(lengths)), counts)
        self.first = (np.arange(len(self.document)) - np.repeat(np.cumsum(counts) - counts, counts)) * seq_len
        self.lengths = np.minimum(lengths[self.document] - self.first, seq_len)


class _Sequential:
    def __init__(self, dataset: Dataset, seq_len: int, rows_per_batch: int, seed: int) -> None:
        lengths = token_lengths(dataset)
        self.num_documents, self.total = len(dataset), int(lengths.sum())
        self.windows, self.seq_len, self.rows, self.seed = _Windows(lengths, seq_len), seq_len, rows_per_batch, seed
        self.place = {"epoch": 0, "batch": 0, "document": 0, "offset": 0, "cuts": 0, "dropped_tokens": 0}
        self._order = _EpochOrder(len(self.windows.document), seed)
        if self.total < rows_per_batch * seq_len:
            raise ValueError(_too_small(self.num_documents, self.total, rows_per_batch, seq_len))

    def next_slots(self) -> list[Slot]:
        place = dict(self.place)
        slots, filled = self._fill(place)
        if filled < self.rows * self.seq_len:  # the epoch ends here; its remainder is dropped and counted once
            place = {**self.place, "epoch": place["epoch"] + 1, "batch": 0, "document": 0, "offset": 0, "dropped_tokens": place["dropped_tokens"] + filled}
            slots, filled = self._fill(place)
        place["batch"] += 1
        self.place = place
        return slots

    def _fill(self, place: dict[str, int]) -> tuple[list[Slot], int]:
        """Take windows from `place` on, advancing it, until the batch is full or the epoch ends."""
        order, capacity = self._order.of(place["epoch"]), self.rows * self.seq_len
        slots: list[Slot] = []
        filled = 0
        while filled < capacity and place["document"] < len(order):
            window = int(order[place["document"]])
            length, begin, start = int(self.windows.lengths[window]), int(self.windows.first[window]), place["offset"]
            stop = min(length, start + self.seq_len - filled % self.seq_len)
            if stop > start:
                slots.append(Slot(filled, int(self.windows.document[window]), begin + start, begin + stop))
            filled += stop - start
            if stop < length:
                place["offset"] = stop
                place["cuts"] += 1
            else:
                place["document"] += 1
                place["offset"] = 0
        return slots, filled

    def report(self, place: Mapping[str, int | str]) -> dict[str, int | float]:
        order = self._order.of(0)
        ends = np.cumsum(self.windows.lengths[order])
        across = self.windows.document[order][(ends - 1) // self.seq_len != (ends - self.windows.lengths[order]) // self.seq_len]
        in_windows = self.windows.document[self.windows.first > 0]
        return {
            "documents": self.num_documents, "windows_cut": len(self.windows.document) - self.num_documents, "cuts": place["cuts"],
            "dropped_tokens": place["dropped_tokens"], "padding_fraction": 0.0,
            "cut_fraction": len(np.union1d(across, in_windows)) / self.num_documents,
            "dropped_fraction": self.total % (self.rows * self.seq_len) / self.total,
        }  # fmt: skip


class _WholeItems:
    """best_fit and none: every item stays in one row. Items are chats, cut by turns if need be, or the windows of documents."""

    def __init__(self, dataset: Dataset, seq_len: int, rows_per_batch: int, seed: int, pack: bool) -> None:
        self.num_documents, self.seq_len, self.rows, self.seed, self.pack = len(dataset), seq_len, rows_per_batch, seed, pack
        self.place = {"epoch": 0, "batch": 0, "dropped_rows": 0}
        self.cut = self.left_out = self.lost_targets = 0
        if len(dataset) and _read(dataset, 0)[1] is None:
            windows = _Windows(token_lengths(dataset), seq_len)
            self.document, self.first, self.kept = windows.document, windows.first, windows.lengths
            self.cut = len(np.unique(self.document[self.first > 0]))
        else:
            self._measure(dataset)
        self.total = int(token_lengths(dataset).sum())
        self._order = _EpochOrder(len(self.kept), seed)
        self._plan: tuple[int, list[list[int]]] | None = None
        self.num_rows = len(self._plan_of(0))  # the same in every epoch: it depends on the lengths alone
        if self.num_rows < rows_per_batch:
            raise ValueError(_too_small(len(dataset), int(self.kept.sum()), rows_per_batch, seq_len) + f" (they pack into {self.num_rows} rows)")

    def _measure(self, dataset: Dataset) -> None:
        """Tokens kept of each chat (0 = left out), and the counts of what the rule changes."""
        self.document, self.first, self.kept = np.arange(len(dataset)), np.zeros(len(dataset), np.int64), np.zeros(len(dataset), np.int64)
        supervised = 0
        for index in range(len(dataset)):
            tokens, mask = _read(dataset, index)
            if mask is None:
                raise ValueError(f"row {index} has no 'mask' but row 0 has; expected chats throughout or documents throughout: run the tokenize stage again")
            keep = _keep_whole_turns(mask, self.seq_len)
            self.kept[index] = keep
            self.left_out += keep == 0
            self.cut += 0 < keep < len(tokens)
            self.lost_targets += int(mask[keep:].sum())
            supervised += int(mask[:keep].sum())
        if supervised == 0 and len(dataset):
            raise ValueError(
                f"none of {len(dataset)} chats has a whole assistant turn within seq_len={self.seq_len}; "
                "use a longer seq_len or check the masks of the tokenize stage"
            )

    def next_slots(self) -> list[Slot]:
        place = dict(self.place)
        if (place["batch"] + 1) * self.rows > self.num_rows:
            place = {"epoch": place["epoch"] + 1, "batch": 0, "dropped_rows": place["dropped_rows"] + self.num_rows % self.rows}
        plan = self._plan_of(place["epoch"])
        first = place["batch"] * self.rows
        slots: list[Slot] = []
        for row, items in enumerate(plan[first : first + self.rows]):
            column = row * self.seq_len
            for item in items:
                begin, keep = int(self.first[item]), int(self.kept[item])
                slots.append(Slot(column, int(self.document[item]), begin, begin + keep))
                column += keep
        place["batch"] += 1
        self.place = place
        return slots

    def _plan_of(self, epoch: int) -> list[list[int]]:
        if self._plan is None or self._plan[0] != epoch:
            self._plan = (epoch, self._rows_of(epoch))
        return self._plan[1]

    def _rows_of(self, epoch: int) -> list[list[int]]:
        """Rows of an epoch as lists of items: packed longest first, items of equal length in the epoch's order, then shuffled."""
        order = self._order.of(epoch)
        order = order[self.kept[order] > 0]
        if not self.pack:
            return [[int(item)] for item in order]
        order = order[np.argsort(-self.kept[order], kind="stable")]
        packed = best_fit(self.kept[order].tolist(), self.seq_len)
        shuffled = np.random.default_rng([self.seed, epoch, 1]).permutation(len(packed))
        return [[int(order[i]) for i in packed[row]] for row in shuffled]

    def report(self, place: Mapping[str, int | str]) -> dict[str, int | float]:
        kept, places = int(self.kept.sum()), self.num_rows * self.seq_len
        return {
            "chats": self.num_documents, "chats_cut": int(self.cut), "chats_left_out": int(self.left_out), "lost_targets": self.lost_targets,
            "rows_per_epoch": self.num_rows, "batches_per_epoch": self.num_rows // self.rows, "dropped_rows": place["dropped_rows"],
            "padding_fraction": (places - kept) / places, "cut_fraction": self.cut / self.num_documents,
            "dropped_fraction": (self.total - kept) / self.total,
        }  # fmt: skip


class _EpochOrder:
    """Document order of an epoch, a pure function of (seed, epoch); the last one asked for is kept."""

    def __init__(self, num_documents: int, seed: int) -> None:
        self.num_documents, self.seed = num_documents, seed
        self._last: tuple[int, NDArray[np.int64]] | None = None

    def of(self, epoch: int) -> NDArray[np.int64]:
        if self._last is None or self._last[0] != epoch:
            self._last = (epoch, np.random.default_rng([self.seed, epoch]).permutation(self.num_documents))
        return self._last[1]


def _keep_whole_turns(mask: NDArray[np.integer], seq_len: int) -> int:
    """Tokens of a chat to keep: all if it fits and is supervised at all, else up to the end of its last supervised run that fits."""
    if len(mask) <= seq_len:
        return len(mask) if mask.any() else 0
    ends = np.flatnonzero((mask[:-1] == 1) & (mask[1:] == 0)) + 1
    ends = np.append(ends, len(mask)) if mask[-1] == 1 else ends
    fitting = ends[ends <= seq_len]
    return int(fitting[-1]) if len(fitting) else 0


def token_lengths(dataset: Dataset) -> NDArray[np.int64]:
    """Tokens of every document, (num_documents,)."""
    if isinstance(dataset, MdsFolder):
        return dataset.lengths("tokens")
    return np.array([len(dataset[index]["tokens"]) for index in range(len(dataset))], dtype=np.int64)


def _read(dataset: Dataset, index: int) -> tuple[NDArray[np.integer], NDArray[np.integer] | None]:
    row = dataset.read(index, _READ) if isinstance(dataset, MdsFolder) else dataset[int(index)]
    return row["tokens"], row.get("mask")


def _too_small(num_documents: int, num_tokens: int, rows: int, seq_len: int) -> str:
    return (
        f"{num_documents} documents with {num_tokens} tokens do not fill one batch of {rows} rows x {seq_len} tokens = {rows * seq_len}; "
        "use more data, fewer rows per batch or a shorter seq_len"
    )
