"""The files of prepare that hold problems and chats: written, and checked together with the text.

In: a ProblemSource and counts. Out: problems/{train,val,test}.jsonl {id, task, prompt, answer} and chat/{train,val,test}.jsonl
{id, source, messages}, with counts of what was drawn, kept and dropped; data/ingest.py appends the records of sources. JSONL here
ends lines with LF only; a text may hold any other line separator unescaped, so read it line by line, not with str.splitlines.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from data.conversations import build_chats
from data.corpus import text_files
from data.dedupe import content_id
from data.ingest import question_digest, questions
from data.problems import ProblemSource
from data.split import SPLITS, check_disjoint


def write_problems(source: ProblemSource, counts: Mapping[str, int], folder: Path) -> dict[str, dict]:
    """problems/{split}.jsonl with `counts` problems each; returns facts per split. ValueError when a task is too small."""
    facts = {}
    for split in SPLITS:
        chosen, repeats = source.distinct("problems", split, counts[split])
        rows = [{"id": content_id(f"{task}: {p.key}"), "task": task, "prompt": p.prompt, "answer": p.answer} for task, p in chosen]
        write_jsonl(folder / f"{split}.jsonl", rows)
        facts[split] = {"draws": len(rows) + repeats, "kept": len(rows), "dropped": {"repeat": repeats}, "by_task": Counter(task for task, _ in chosen)}
    return facts


def write_chats(source: ProblemSource, counts: Mapping[str, int], folder: Path, *, system_fraction: float, multi_turn_fraction: float) -> dict[str, dict]:
    """chat/{split}.jsonl with `counts` chats each; returns facts per split. ValueError when the tasks are too small."""
    facts = {}
    for split in SPLITS:
        chats, repeats = build_chats(source, split, counts[split], system_fraction=system_fraction, multi_turn_fraction=multi_turn_fraction)
        write_jsonl(folder / f"{split}.jsonl", chats)
        facts[split] = {"draws": len(chats) + repeats, "kept": len(chats), "dropped": {"repeat": repeats}, "by_source": Counter(c["source"] for c in chats)}
    return facts


def held_out_questions(folder: Path) -> frozenset[str]:
    """Questions of the validation and test problems under `folder`."""
    return frozenset(row["prompt"] for split in ("val", "test") for row in read_jsonl(folder / f"{split}.jsonl"))


def owned_questions(out: Path) -> dict[str, str]:
    """Digest of every question of the problems and chats below `out` -> the split that holds it."""
    return {question_digest(question): split for split in SPLITS
            for question in [*(row["prompt"] for row in read_jsonl(out / "problems" / f"{split}.jsonl")), *_questions(out, split, frozenset())]}


def held_out_items(folder: Path) -> Iterator[tuple[str, str]]:
    """(id, text) of the validation and test problems: the question, and the question with its answer."""
    for split in ("val", "test"):
        for row in read_jsonl(folder / f"{split}.jsonl"):
            yield f"problems/{split}/{row['id']}", row["prompt"]
            yield f"problems/{split}/{row['id']}", f"{row['prompt']} {row['answer']}"


def check_written(out: Path, sources: Collection[str] = ()) -> dict[str, int]:
    """Compare the splits on the files themselves: documents, problem keys, and the questions of chats, preferences and problems together.

    Of records that come from `sources` the first question counts: it decided their split, while later turns ("and then?") say
    nothing alone. ValueError on the first key that two splits share; returns how many keys were compared.
    """
    ids = {split: [row["id"] for path in text_files(out / "text", split) for row in read_jsonl(path)] for split in SPLITS}
    rows = {split: list(read_jsonl(out / "problems" / f"{split}.jsonl")) for split in SPLITS}
    asked = {split: [*_questions(out, split, frozenset(sources)), *(row["prompt"].strip() for row in rows[split])] for split in SPLITS}
    check_disjoint(ids, "text documents")
    check_disjoint({split: [row["id"] for row in rows[split]] for split in SPLITS}, "problem keys")
    check_disjoint(asked, "questions of chats and problems")
    return {"documents": sum(map(len, ids.values())), "questions": sum(map(len, asked.values())), "shared": 0}


def check_filled(out: Path, folders: Iterable[str]) -> None:
    """ValueError when a split of one of the folders holds nothing."""
    for folder in folders:
        empty = [split for split in SPLITS if not (out / folder / f"{split}.jsonl").stat().st_size]
        if empty:
            raise ValueError(f"{folder} split {' and '.join(empty)} is empty; give the sources of {folder} more records, raise the split's fraction, "
                             "or let built-in ones fill it (prepare.num_chats, prepare.num_problems)")


def _questions(out: Path, split: str, sources: frozenset[str]) -> Iterator[str]:
    """What the users of a split's chats and preferences ask, in order; of records from `sources` the first question only."""
    for folder in ("chat", "preference"):
        path = out / folder / f"{split}.jsonl"
        for row in read_jsonl(path) if path.is_file() else ():
            asked = [text.strip() for text in questions(row)]
            yield from asked[:1] if row["source"] in sources else asked


def read_jsonl(path: Path) -> Iterator[dict]:
    """Records of a file that this module wrote."""
    with path.open("rb") as lines:
        yield from map(json.loads, lines)


def write_jsonl(path: Path, rows: Iterable[dict]) -> None:
    """One object a line, keys sorted, UTF-8, LF."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as handle:
        handle.writelines(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in rows)
