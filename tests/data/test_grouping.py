"""Near-duplicates over a corpus: the survivor, the splits, the acceptance run."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from data.cleaning.policy import Cleaning, NearDuplicates
from data.corpus import plan_jobs, read_jobs
from data.dedupe import content_id
from data.grouping import near_duplicates
from data.pool import Pool
from tests.data.listed import build, by_text, source

NEAR = Cleaning(near_duplicates=NearDuplicates())
KEPT = Cleaning(near_duplicates=NearDuplicates(keep="all"))


def texts(count: int, seed: int = 0, words: int = 80) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(f"{rng.choice('abcdefghij')}{rng.randrange(3000)}" for _ in range(words)) for _ in range(count)]


def edit(text: str, at: int, word: str = "changed") -> str:
    words = text.split()
    words[at] = word
    return " ".join(words)


BASE = texts(60)


def test_the_longest_then_the_smallest_id_survives_across_sources(tmp_path: Path) -> None:
    longer, same = edit(BASE[0], 40, "x" * 30), edit(BASE[1], 40, BASE[1].split()[40][::-1])
    facts, files = build(tmp_path, source("a", BASE, cleaning=NEAR), source("b", [longer, same], cleaning=NEAR))
    kept = set(by_text(files))
    assert longer in kept and BASE[0] not in kept
    assert {BASE[1], same} & kept == {min((BASE[1], same), key=content_id)}
    dropped = {name: counts["dropped"].get("near_duplicate", 0) for name, counts in facts["sources"].items()}
    assert sum(dropped.values()) == 2 and dropped["a"] >= 1 and len(kept) == 60
    assert facts["near_duplicates"] == {"threshold": 0.8, "ngram": 5, "bands": 21, "rows": 6, "documents": 62, "groups": 2, "in_groups": 4, "largest_group": 2}


def test_the_result_does_not_depend_on_order_pieces_or_workers(tmp_path: Path) -> None:
    pool = BASE + [edit(text, 30) for text in BASE[:20]] + [edit(text, 5, "z" * (i % 3)) for i, text in enumerate(BASE[10:30])]
    results = []
    for number, (order, workers) in enumerate(((1, 1), (-1, 1), (1, 2), (-1, 4))):
        ordered = pool[::order]
        _, files = build(tmp_path / str(number), source("a", ordered[:30], ordered[30:31], ordered[31:], cleaning=NEAR), workers=workers)
        results.append({name: sorted(row["text"] for row in rows) for name, rows in files.items()})
    assert all(result == results[0] for result in results) and sum(map(len, results[0].values())) == 60


def test_data13_a_group_shares_a_split_kept_or_not(tmp_path: Path) -> None:
    """DATA-13: ten versions of each of twelve texts, every version in a group of its own or with a document that quotes it."""
    versions = [[edit(text, 8 * i, f"v{i}") for i in range(10)] for text in texts(12, seed=3, words=200)]
    quoting = [[(f"notes on {i} {j}: " + " ".join(texts(1, seed=100 * i + j)), f"module{i}-{j}") for j in range(10)] for i in range(12)]
    records = [(text, f"module{i}-{j}") for i, group in enumerate(versions) for j, text in enumerate(group)]
    facts, files = build(tmp_path / "all", source("code", records, cleaning=KEPT), source("docs", [pair for group in quoting for pair in group]))
    where = by_text(files)
    assert len(where) == 240 and facts["near_duplicates"]["groups"] == 12 and "near_duplicate" not in facts["sources"]["code"]["dropped"]
    splits = [{where[text] for text in group} | {where[text] for text, _ in notes} for group, notes in zip(versions, quoting)]
    assert all(len(found) == 1 for found in splits) and set.union(*splits) == {"train", "val", "test"}
    facts, files = build(tmp_path / "one", source("code", records, cleaning=NEAR), source("docs", [pair for group in quoting for pair in group]))
    where = by_text(files)
    assert len(where) == 132 and facts["sources"]["code"]["dropped"]["near_duplicate"] == 108
    for group, notes in zip(versions, quoting):
        assert len({where[text] for text in group if text in where} | {where[text] for text, _ in notes}) == 1


def test_an_exact_copy_of_a_dropped_document_is_dropped_too_but_not_in_a_source_that_did_not_ask(tmp_path: Path) -> None:
    longer = edit(BASE[0], 40, "x" * 30)
    facts, files = build(tmp_path, source("a", [*BASE, longer, BASE[0], BASE[2]], cleaning=NEAR), source("b", [BASE[0], "plain"]))
    assert facts["sources"]["a"]["dropped"]["near_duplicate"] == 2 and facts["sources"]["a"]["dropped"]["duplicate"] == 1
    assert [row["source"] for rows in files.values() for row in rows if row["text"] == BASE[0]] == ["b"]
    assert by_text(files)[BASE[0]] == by_text(files)[longer]


def test_sources_that_are_compared_must_agree(tmp_path: Path) -> None:
    other = Cleaning(near_duplicates=NearDuplicates(threshold=0.7))
    with pytest.raises(ValueError, match="cleaning.near_duplicates differs between sources .a: NearDuplicates.threshold=0.8.*; expected the same settings"):
        plan_jobs([source("a", BASE, cleaning=NEAR), source("b", BASE, cleaning=other)], tmp_path)
    assert near_duplicates(plan_jobs([source("a", BASE)], tmp_path)).facts is None


def exact_jaccard(a: str, b: str) -> float:
    """Written apart from the code under test: sets of tuples of words."""
    first, second = ({tuple(text.split()[i : i + 5]) for i in range(len(text.split()) - 4)} for text in (a, b))
    return len(first & second) / len(first | second)


def planted(rng: random.Random, text: str, low: float, high: float) -> str:
    """A version of `text` whose exact Jaccard similarity to it is in [low, high)."""
    while True:
        words = text.split()
        for _ in range(rng.randint(1, 8)):
            at = rng.randrange(len(words))
            kind = rng.random()
            if kind < 0.5:
                words[at] = f"new{rng.randrange(10**6)}"
            elif kind < 0.75:
                del words[at : at + rng.randint(1, 5)]
            else:
                words.insert(at, f"new{rng.randrange(10**6)}")
        version = " ".join(words)
        if low <= exact_jaccard(text, version) < high:
            return version


@pytest.mark.slow
def test_a_thousand_planted_near_duplicates_in_twenty_thousand_documents(tmp_path: Path) -> None:
    """Recall of at least 0.95 of pairs at a true similarity of 0.8 or more, precision of at least 0.99 with 1,000 look-alikes
    between 0.6 and 0.8 among the documents. A drop is true when its exact similarity to the survivor of its pair is 0.8 or more."""
    rng = random.Random(11)
    originals = [" ".join(f"{rng.choice('abcdefghij')}{int(rng.paretovariate(0.6)) % 20_000}" for _ in range(rng.randint(60, 160))) for _ in range(18_000)]
    near = [(text, planted(rng, text, 0.8, 0.9)) for text in originals[:1000]]
    alike = [(text, planted(rng, text, 0.6, 0.8)) for text in originals[1000:2000]]
    documents = originals + [version for _, version in near + alike]
    assert len(documents) == 20_000 == len(set(documents))
    rng.shuffle(documents)
    jobs = plan_jobs([source("web", *[documents[start : start + 1000] for start in range(0, 20_000, 1000)], cleaning=NEAR)], tmp_path)
    read_jobs(jobs, frozenset(), Pool(1), lambda: None)
    dropped = near_duplicates(jobs).dropped
    pairs = [{content_id(text), content_id(version)} for text, version in near]
    found = sum(len(pair & set(dropped)) == 1 for pair in pairs)
    texts_by_id = {content_id(text): text for text in documents}
    true = sum(exact_jaccard(texts_by_id[key], texts_by_id[survivor]) >= 0.8 for key, survivor in dropped.items())
    recall, precision = found / len(pairs), true / len(dropped)
    print(f"recall {recall:.4f} ({found} of {len(pairs)}), precision {precision:.4f} ({true} of {len(dropped)})")
    assert recall >= 0.95 and precision >= 0.99
