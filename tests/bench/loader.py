"""Tokens per second from shards to packed batches: data/loading against StreamingDataset with torch's DataLoader and a packing collate.

`python -m tests.bench.loader [--quick]`. Documents of random ids and of lengths as web text has them are written as MDS once. Ours: a
shuffled, packed, resumable stream read ahead by threads. Peer: StreamingDataset, shuffled, in a DataLoader with as many worker processes
as we have threads, whose collate lays the documents it is given out in the same rows with the same four arrays. Both are read in turn
(ours, peer, ours, peer, ...), each pass in a process of its own for the same number of tokens after a warm-up. Prints one JSON line last:
ratio is the median of ours / peer in tokens per second (above 1: ours is faster).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from data.layout import PAD_SEGMENT, PackedBatch, assemble
from data.loading.leftovers import clean_leftovers
from data.loading.prefetch import Prefetched
from data.packing import PackedStream
from data.shards import open_mds, write_mds

SEQ_LEN, ROWS, WORKERS, VOCAB = 2048, 16, 2, 50_000
MEAN_TOKENS = 600
COLUMNS = {"tokens": "ndarray:uint16", "id": "str", "num_bytes": "int64", "source": "str"}


def documents(total: int) -> Iterator[dict]:
    """Rows of `total` tokens in all; lengths are log-normal."""
    rng, made, number = np.random.default_rng(0), 0, 0
    while made < total:
        length = int(np.clip(rng.lognormal(np.log(MEAN_TOKENS) - 0.5, 1.0), 8, 20_000))
        yield {"tokens": rng.integers(0, VOCAB, length).astype(np.uint16), "id": f"document-{number}", "num_bytes": 4 * length, "source": "made"}
        made, number = made + length, number + 1


def ours(folder: Path) -> Callable[[], PackedBatch]:
    """Our batches."""
    return Prefetched(PackedStream(open_mds(folder), SEQ_LEN, ROWS, 0, "sequential"), depth=4, workers=WORKERS).next


def collate(rows: list[dict]) -> PackedBatch:
    """Documents one after the other over rows of SEQ_LEN, the last one padded."""
    pieces, filled = [], 0
    for row in rows:
        tokens, start = row["tokens"], 0
        while start < len(tokens):
            stop = min(len(tokens), start + SEQ_LEN - filled % SEQ_LEN)
            pieces.append((filled, tokens[start:stop], None))
            filled += stop - start
            start = stop
    return assemble(pieces, -(-filled // SEQ_LEN), SEQ_LEN)


def peer(folder: Path) -> Callable[[], PackedBatch]:
    """The peer's batches, of about as many tokens."""
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    size = ROWS * SEQ_LEN // MEAN_TOKENS
    dataset = StreamingDataset(local=str(folder), remote=None, shuffle=True, batch_size=size)
    loader = DataLoader(dataset, batch_size=size, num_workers=WORKERS, collate_fn=collate, prefetch_factor=4)

    def endless() -> Iterator[PackedBatch]:
        while True:
            yield from loader

    return endless().__next__


def measure(side: str, folder: Path, tokens: int) -> float:
    """Tokens per second, padding not counted, after the first eight batches."""
    next_batch = {"ours": ours, "peer": peer}[side](folder)
    for _ in range(8):
        next_batch()
    begun, read = time.perf_counter(), 0
    while read < tokens:
        read += int((next_batch().segments_BT != PAD_SEGMENT).sum())
    return read / (time.perf_counter() - begun)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a size that ends within a minute on two cores")
    parser.add_argument("--side", choices=("ours", "peer"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    tokens, rounds = (6_000_000, 2) if args.quick else (40_000_000, 5)
    if args.side:
        sys.stdout.write(f"{measure(args.side, args.folder, tokens)}\n")
        sys.stdout.flush()
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "shards"
        count = write_mds(folder, COLUMNS, documents(tokens // 2), 16 << 20)
        speeds: dict[str, list[float]] = {"ours": [], "peer": []}
        for _ in range(rounds):
            for side, found in speeds.items():
                command = [sys.executable, "-m", "tests.bench.loader", "--side", side, "--folder", str(folder), *(["--quick"] if args.quick else [])]
                found.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]))
                clean_leftovers()
    ratios = [a / b for a, b in zip(*speeds.values(), strict=True)]
    sys.stdout.write(json.dumps({
        "bench": "loader", "ratio": round(statistics.median(ratios), 3), "ratios": [round(ratio, 3) for ratio in ratios],
        "ours": round(statistics.median(speeds["ours"])), "peer": round(statistics.median(speeds["peer"])), "unit": "tokens per second",
        "work": {"documents": count, "tokens_in_shards": tokens // 2, "tokens_read": tokens, "seq_len": SEQ_LEN, "rows": ROWS, "workers": WORKERS},
    }) + "\n")  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
