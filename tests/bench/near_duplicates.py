"""Near-duplicate search: data/cleaning against datasketch's MinHash and MinHashLSH on the same documents.

`python -m tests.bench.near_duplicates [--quick]`; the peer is in requirements-bench.txt. Documents of 60 to 160
words, every tenth with a copy that differs in one word. Both sides use word 5-grams, 128 permutations and threshold 0.8, and must drop at
least 98 % of the copies and nothing else; ours verifies each candidate by exact Jaccard, the peer takes the bands' word for it. In turn
(ours, peer, ours, peer, ...). Prints one JSON line last: ratio is the median of ours / peer in documents per second of CPU (above 1: ours
is faster).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from data.cleaning.minhash import choose_bands, signature
from data.cleaning.near_duplicates import find_groups
from data.cleaning.words import shingles, words

NGRAM, THRESHOLD, NUM_PERM = 5, 0.8, 128
PEER = "datasketch==2.0.0"


def documents(num: int) -> tuple[list[str], int]:
    """`num` random texts followed by a version of every tenth of them, and how many versions there are."""
    rng = random.Random(11)
    texts = [" ".join(f"{rng.choice('abcdefghij')}{int(rng.paretovariate(0.6)) % 20_000}" for _ in range(rng.randint(60, 160))) for _ in range(num)]
    versions = []
    for text in texts[::10]:
        changed = text.split()
        changed[rng.randrange(5, len(changed) - 5)] = "changed"
        versions.append(" ".join(changed))
    return texts + versions, len(versions)


def run_ours(texts: list[str]) -> int:
    """Documents that would be dropped."""
    bands, rows = choose_bands(THRESHOLD, NUM_PERM)
    signatures = np.array([signature(shingles(text, NGRAM), bands * rows) for text in texts]).reshape(-1, bands, rows).transpose(1, 0, 2)
    return sum(len(members) - 1 for members in find_groups(signatures, THRESHOLD, lambda i: shingles(texts[i], NGRAM)).joined())


def run_peer(texts: list[str]) -> int:
    """The same with the peer, its bands weighted towards recall."""
    from datasketch import MinHash, MinHashLSH  # not a dependency: only whoever runs this comparison has it

    index, dropped = MinHashLSH(threshold=THRESHOLD, num_perm=NUM_PERM, weights=(0.1, 0.9)), 0
    for number, text in enumerate(texts):
        found = words(text)
        sketch = MinHash(num_perm=NUM_PERM)
        sketch.update_batch([b" ".join(found[i : i + NGRAM]) for i in range(len(found) - NGRAM + 1)])
        dropped += bool(index.query(sketch))
        index.insert(number, sketch)
    return dropped


def rate(run: Callable[[list[str]], int], texts: list[str], copies: int) -> float:
    """Documents per second of CPU time. RuntimeError when the work was not done."""
    started = time.process_time()
    dropped = run(texts)
    seconds = time.process_time() - started
    if not 0.98 * copies <= dropped <= copies:
        raise RuntimeError(f"{run.__name__} dropped {dropped} documents, expected the {copies} copies")
    return len(texts) / seconds


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer documents, fewer rounds")
    quick = parser.parse_args(argv).quick
    texts, copies = documents(2_000 if quick else 10_000)
    try:
        run_peer(texts[:2])
    except ImportError:
        sys.stderr.write(f"the peer is not installed; run `pip install -r requirements-bench.txt` ({PEER})\n")
        return 2
    rates = [(rate(run_ours, texts, copies), rate(run_peer, texts, copies)) for _ in range(3 if quick else 5)]
    ratios = [ours / peer for ours, peer in rates]
    result = {"bench": "near_duplicates", "ratio": round(statistics.median(ratios), 3), "ratios": [round(ratio, 3) for ratio in ratios],
              "ours": round(statistics.median(ours for ours, _ in rates)), "peer": round(statistics.median(peer for _, peer in rates)), "peer_version": PEER,
              "work": f"{len(texts):,} documents, {copies:,} copies; documents per second of CPU"}
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
