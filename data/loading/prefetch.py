"""Batches made ahead of the training step, in the order of the stream, to be resumed at the first batch that was not handed out.

In: a PackedStream. Out: the same batches, from threads: one decides what the next batch holds (from lengths, in order), any number read
and lay out. The order is the stream's, so neither the number of threads nor how far they run ahead nor the number of ranks changes
anything: a rank reads only its rows of the global batch, the saved place counts what was handed out, never what was fetched.
Threads, not processes: the work is copying from mapped files, and processes would copy every batch once more.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from data.layout import PackedBatch
from data.packing import PackedStream, Slot

State = dict[str, int | str]


class Prefetched:
    """`stream` with up to `depth` batches made ahead by `workers` threads; rank `rank` of `ranks` gets its equal share of the rows.

    The stream belongs to this object from now on. ValueError when the ranks do not divide the rows.
    """

    def __init__(self, stream: PackedStream, *, depth: int = 2, workers: int = 1, rank: int = 0, ranks: int = 1) -> None:
        if depth < 1 or workers < 1 or not 0 <= rank < ranks:
            raise ValueError(f"depth={depth}, workers={workers}, rank={rank} of {ranks}; "
                             "expected at least one batch and one thread, and a rank below their number")  # fmt: skip
        if stream.rows_per_batch % ranks:
            raise ValueError(f"a batch of {stream.rows_per_batch} rows does not divide among {ranks} ranks; "
                             f"use a multiple of {ranks} rows, such as {-(-stream.rows_per_batch // ranks) * ranks}")  # fmt: skip
        share = stream.rows_per_batch // ranks
        self.wait_seconds = 0.0
        """How long next() has waited for a batch that was not ready."""
        self._stream, self._depth, self._rows = stream, depth, (rank * share, (rank + 1) * share)
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="plan")
        self._builders = ThreadPoolExecutor(workers, thread_name_prefix="batch")
        self._ahead: deque[tuple[Future[tuple[State, list[Slot]]], Future[PackedBatch]]] = deque()

    def next(self) -> PackedBatch:
        """The next batch (this rank's rows of it). An error of a thread, such as a damaged shard, is raised here."""
        self._fill()
        begun = time.perf_counter()
        batch = self._ahead[0][1].result()
        self.wait_seconds += time.perf_counter() - begun
        self._ahead.popleft()
        self._fill()
        return batch

    def state(self) -> State:
        """Place of the first batch that next() has not yet returned."""
        return self._ahead[0][0].result()[0] if self._ahead else self._stream.state()

    def restore(self, state: Mapping[str, int | str]) -> None:
        """Go to a place that state() returned, whatever was fetched ahead. ValueError when it belongs to another stream."""
        self._forget()
        self._stream.restore(state)

    def report(self) -> dict[str, int | float]:
        """PackedStream.report of what was handed out."""
        return self._stream.report(self.state())

    def close(self) -> None:
        """Stop the threads and put the stream at the first batch that was not handed out."""
        state = self.state()
        self._forget()
        self._stream.restore(state)
        self._planner.shutdown()
        self._builders.shutdown()

    def _fill(self) -> None:
        while len(self._ahead) < self._depth:
            plan = self._planner.submit(self._plan)
            self._ahead.append((plan, self._builders.submit(self._build, plan)))

    def _plan(self) -> tuple[State, list[Slot]]:
        """In the planner's thread, one after the other."""
        return self._stream.state(), self._stream.plan()

    def _build(self, plan: Future[tuple[State, list[Slot]]]) -> PackedBatch:
        return self._stream.build(plan.result()[1], *self._rows)

    def _forget(self) -> None:
        for plan, batch in self._ahead:
            if not plan.cancel():
                plan.exception()  # wait until it no longer moves the stream
            batch.cancel()
        self._ahead.clear()
