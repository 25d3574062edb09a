"""Rows of a batch: which tokens go where, and what each is trained to predict.

In: pieces of documents, or only their lengths. Out: a PackedBatch; rows filled by best fit. A piece is a segment: positions restart at 0
in it, models must not attend across its ends, and its last token is never trained to predict what follows it in the row.

Shapes: B rows per batch, T tokens per row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IGNORE = -100
"""Target of a token whose prediction does not count."""
PAD_SEGMENT = -1
"""Segment of padding. Padding has token 0, position 0 and no target."""
Piece = tuple[int, NDArray[np.integer], "NDArray[np.integer] | None"]
"""(start in the flattened batch, tokens, mask or None): one segment."""


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
        """Rows start to stop."""
        return PackedBatch(self.tokens_BT[start:stop], self.targets_BT[start:stop], self.positions_BT[start:stop], self.segments_BT[start:stop])

    def share(self, rank: int, ranks: int) -> PackedBatch:
        """The rows of one of several ranks; shares differ by a row at most, and every row is in exactly one."""
        count = len(self.tokens_BT)
        return self.rows(rank * count // ranks, (rank + 1) * count // ranks)


def assemble(pieces: list[Piece], num_rows: int, seq_len: int) -> PackedBatch:
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


def best_fit(lengths: list[int], capacity: int) -> list[list[int]]:
    """Put items into rows of `capacity`, in the order given, each into the fullest row that has room; returns item indices per row.

    Every length is between 1 and capacity. With lengths in descending order this is best-fit decreasing.
    """
    open_rows = OpenRows(capacity)
    rows: list[list[int]] = []
    for item, length in enumerate(lengths):
        row, _ = open_rows.place(length)
        if row == len(rows):
            rows.append([])
        rows[row].append(item)
    return rows


class OpenRows:
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
