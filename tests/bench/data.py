"""Documents to MDS tokens: the shard tasks of tokenize against `datasets.map` with a fast tokenizer, then MDSWriter.

`python -m tests.bench.data [--quick]`. The text is that of the interpreter's own library, repeated with words changed each time, as
JSONL; the tokenizer is trained on a quarter of it beforehand. Each side runs in processes of its own with as many workers, in turn (ours, peer,
ours, peer, ...), timed from a started interpreter with its libraries imported to finished shards. Memory is the highest sum of
proportional set sizes over a side's whole process tree, imports included. Both must give the same ids for every document. Prints one JSON
line last: ratio is the median of ours / peer in bytes of text per second (above 1: ours is faster).
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import xxhash

WORKERS, VOCAB = 2, 8192
SHARD_BYTES, TASK_BYTES = 16 << 20, 4 << 20
DOCUMENT_CHARS = 4000
_WORD = re.compile(r"[A-Za-z]{6,}")


def documents(total: int) -> Iterator[str]:
    """Stretches of library source of about DOCUMENT_CHARS, `total` characters in all; later passes turn a fifth of the long words round."""
    paths = sorted(path for path in Path(sysconfig.get_paths()["stdlib"]).rglob("*.py") if "site-packages" not in path.parts)
    made = 0
    for turn in range(1000):
        for path in paths:
            text = path.read_text(encoding="utf-8", errors="replace")
            if turn:
                text = _WORD.sub(lambda match, turn=turn: match[0][::-1] if zlib.crc32(f"{turn}{match[0]}".encode()) % 5 == 0 else match[0], text)
            for start in range(0, len(text), DOCUMENT_CHARS):
                yield text[start : start + DOCUMENT_CHARS]
                made += len(text[start : start + DOCUMENT_CHARS])
                if made >= total:
                    return


def prepare(folder: Path, total: int) -> int:
    """corpus.jsonl and tokenizer/ in `folder`; returns the bytes of text."""
    from data.chat import CHAT_TEMPLATE
    from data.tokenizer import save_tokenizer, train_bpe

    size, sample = 0, []
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as handle:
        for number, text in enumerate(documents(total)):
            handle.write(json.dumps({"id": f"d{number}", "source": "library", "text": text}, ensure_ascii=False) + "\n")
            size += len(text.encode())
            if number % 4 == 0:
                sample.append(text)
    save_tokenizer(folder / "tokenizer", train_bpe(sample, VOCAB, 2), CHAT_TEMPLATE)
    return size


def ours(folder: Path, out: Path) -> float:
    """Seconds for the shard tasks on a pool and their merge."""
    from data.encoding import encode_task, merge_tasks, plan_tasks
    from data.pool import Pool, run_tasks

    begun = time.perf_counter()
    tasks = plan_tasks("text", folder / "corpus.jsonl", out / "tasks", folder / "tokenizer", vocab_size=VOCAB, shard_bytes=SHARD_BYTES, task_bytes=TASK_BYTES)
    run_tasks(encode_task, [(task,) for task in tasks], Pool(WORKERS), lambda done: None)
    merge_tasks(tasks, out / "mds")
    return time.perf_counter() - begun


def peer(folder: Path, out: Path) -> float:
    """Seconds for a batched map on a pool and MDSWriter."""
    import datasets
    from streaming import MDSWriter
    from transformers import PreTrainedTokenizerFast

    begun = time.perf_counter()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer")
    end = tokenizer.convert_tokens_to_ids("<|endoftext|>")

    def encode(batch: dict[str, list]) -> dict[str, list]:
        ids = tokenizer(batch["text"], add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False)["input_ids"]
        return {"tokens": [[*row, end] for row in ids], "num_bytes": [len(text.encode()) for text in batch["text"]]}

    rows = datasets.load_dataset("json", data_files=str(folder / "corpus.jsonl"), split="train", cache_dir=str(out / "cache"))
    rows = rows.map(encode, batched=True, num_proc=WORKERS, remove_columns=["text"])
    columns = {"tokens": "ndarray:uint16", "id": "str", "num_bytes": "int64", "source": "str"}
    with MDSWriter(out=str(out / "mds"), columns=columns, hashes=["xxh64"], size_limit=SHARD_BYTES) as writer:
        for row in rows:
            writer.write({**row, "tokens": np.array(row["tokens"], dtype=np.uint16)})
    return time.perf_counter() - begun


def run_side(side: str, folder: Path, out: Path) -> tuple[float, float, str]:
    """(seconds, peak MiB of the process tree, hash of all ids and tokens) of one side in a process of its own."""
    from data.shards import open_mds

    child = subprocess.Popen([sys.executable, "-m", "tests.bench.data", "--side", side, "--folder", str(folder), "--out", str(out)],
                             stdout=subprocess.PIPE, text=True)  # fmt: skip
    peak = [0.0]
    watcher = threading.Thread(target=watch, args=(child, peak))
    watcher.start()
    printed, _ = child.communicate()
    watcher.join()
    if child.returncode:
        raise RuntimeError(f"{side} ended with code {child.returncode}")
    digest, rows = xxhash.xxh3_128(), open_mds(out / "mds")
    for index in range(len(rows)):
        row = rows[index]
        digest.update(f"{row['id']} {row['source']} {row['num_bytes']} ".encode() + row["tokens"].tobytes())
    shutil.rmtree(out)
    return float(printed.split()[-1]), peak[0], digest.hexdigest()


def watch(child: subprocess.Popen, peak: list[float]) -> None:
    """Keep the highest memory of a process and its descendants; shared pages count once."""
    while child.poll() is None:
        total = 0
        try:
            for process in [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]:
                total += process.memory_full_info().pss
        except psutil.Error:  # one of them ended between the two calls
            continue
        peak[0] = max(peak[0], total / 2**20)
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a size that ends within a minute on two cores")
    parser.add_argument("--side", choices=("ours", "peer"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        seconds = {"ours": ours, "peer": peer}[args.side](args.folder, args.out)
        sys.stdout.write(f"{seconds}\n")
        return 0
    total, rounds = (6 << 20, 1) if args.quick else (52 << 20, 3)
    found: dict[str, list[tuple[float, float, str]]] = {"ours": [], "peer": []}
    with tempfile.TemporaryDirectory() as scratch:
        size = prepare(Path(scratch), total)
        for _ in range(rounds):
            for side, results in found.items():
                results.append(run_side(side, Path(scratch), Path(scratch) / side))
    if len({digest for results in found.values() for _, _, digest in results}) > 1:
        sys.stderr.write("error: the two sides made different rows, so their speeds do not compare\n")
        return 1
    ratios = [theirs[0] / mine[0] for mine, theirs in zip(*found.values(), strict=True)]
    speed = {side: statistics.median(size / seconds for seconds, _, _ in results) for side, results in found.items()}
    peak = {side: round(max(memory for _, memory, _ in results)) for side, results in found.items()}
    sys.stdout.write(json.dumps({
        "bench": "data", "ratio": round(statistics.median(ratios), 3), "ratios": [round(ratio, 3) for ratio in ratios],
        "ours": round(speed["ours"]), "peer": round(speed["peer"]), "unit": "bytes of text per second",
        "peak_mib": peak, "memory_ratio": round(peak["peer"] / peak["ours"], 3),
        "work": {"bytes": size, "workers": WORKERS, "vocab_size": VOCAB},
    }) + "\n")  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
