"""Pass 1 with cleaning: what is dropped and changed is counted, and a finished piece is complete."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from data.cleaning.contamination import build_index
from data.cleaning.policy import Cleaning, Contamination, NearDuplicates
from data.corpus import is_done, plan_jobs, read_job, read_jobs
from data.dedupe import content_id
from data.pieces import screen
from data.pool import Pool
from tests.data.listed import build, source

SENTENCES = [f"This is sentence {i} of a corpus that is made for tests only." for i in range(60)]


def test_data01_what_cleaning_leaves_empty_is_counted_too(tmp_path: Path) -> None:
    """DATA-01: records that are empty as read, after Unicode, and after the lines are gone."""
    cleaning = Cleaning(unicode="nfc", rules=["c4_open_line"])
    facts, files = build(tmp_path, source("a", ["", *SENTENCES[:30], "\x00\ufeff", None, "Menu\nHome", *SENTENCES[30:], " \n"], cleaning=cleaning))
    counts = facts["sources"]["a"]
    assert counts["dropped"] == {"empty": 3, "undecodable": 1, "contaminated": 0, "duplicate": 0, "over_budget": 0, "c4_no_lines": 1}
    assert counts["kept"] == 60 == sum(map(len, files.values())) and counts["changed"] == {"control_characters": 2, "c4_open_line": 2}


def test_every_drop_and_change_is_counted_and_ids_are_of_the_cleaned_text(tmp_path: Path) -> None:
    cleaning = Cleaning(unicode="nfc", rules=["c4_curly_bracket", "c4_open_line"], languages=["en"], pii=["email"], contamination=Contamination())
    index = build_index([("problems/val/7", "How many tests does it take?")], 13)
    special = ["int main() { }", "Menu\nWrite to me at a@b.co, it is the best way.", "Il comitato si \u00e8 riunito marted\u00ec per parlare della biblioteca.",
               "He asked how many tests does it take."]
    facts, files = build(tmp_path, source("a", SENTENCES + special, cleaning=cleaning), source("plain", special[:1]), evaluation=index)
    counts = facts["sources"]["a"]
    assert counts["dropped"] == {"empty": 0, "undecodable": 0, "contaminated": 1, "duplicate": 0, "over_budget": 0, "c4_curly_bracket": 1, "language": 1}
    assert counts["changed"] == {"c4_open_line": 1, "masked_email": 1}
    assert counts["quotes"] == [{"id": content_id(special[3]), "items": ["problems/val/7"]}]
    assert "changed" not in facts["sources"]["plain"] and facts["sources"]["plain"]["kept"] == 1
    rows = [row for rows in files.values() for row in rows]
    assert "Write to me at <EMAIL>, it is the best way." in {row["text"] for row in rows} and all(row["id"] == content_id(row["text"]) for row in rows)


def test_the_exact_check_of_held_out_questions_stays_after_cleaning() -> None:
    held_out = frozenset({"What is caf\u00e9?"})
    assert screen("What is caf\u00e9?", held_out, None, None).reason == "contaminated"
    assert screen("What is cafe\u0301?", held_out, None, None).reason is None
    assert screen("What is cafe\u0301?", held_out, Cleaning(unicode="nfc"), None).reason == "contaminated"


def test_a_resumed_or_parallel_pass_gives_the_same_bytes(tmp_path: Path) -> None:
    cleaning = Cleaning(unicode="nfkc", rules=["c4_open_line"], near_duplicates=NearDuplicates(ngram=3), contamination=Contamination(ngram=6), pii=["ip"])
    words = [" ".join(f"w{i}x{j}" for j in range(30)) for i in range(90)]
    records = [f"{words[i // 2]} v{i}.\nNoise {i}\n8.8.{i}.8 e\u0301." for i in range(180)] + [f"It quotes {' '.join(text.split()[:8])} here." for text in words[::9]]
    sources = [source("a", *[records[start : start + 20] for start in range(0, 190, 20)], cleaning=cleaning), source("b", SENTENCES, cleaning=cleaning)]
    outputs = []
    for workers in (1, 2, 4):
        folder = tmp_path / str(workers)
        jobs = plan_jobs(sources, folder / "work")
        for job in jobs[: workers * 2]:  # an earlier attempt got this far, and was killed between two renames of the last piece
            read_job(job, frozenset())
        jobs[workers].index.unlink()
        jobs[workers].signatures.write_bytes(b"cut")
        facts, _ = build(folder, *sources, workers=workers)
        outputs.append((facts, {path.name: path.read_bytes() for path in (folder / "out").iterdir()}))
    assert outputs[0] == outputs[1] == outputs[2] and outputs[0][0]["sources"]["a"]["changed"]["masked_ip"] == 180
    dropped = outputs[0][0]["sources"]["a"]["dropped"]
    assert dropped["near_duplicate"] == 90 and 0 < dropped["contaminated"] < 10, dropped


def test_signatures_stand_beside_the_lines(tmp_path: Path) -> None:
    jobs = plan_jobs([source("a", SENTENCES, ["", "  "], cleaning=Cleaning(near_duplicates=NearDuplicates(num_perm=64, threshold=0.9)))], tmp_path)
    assert read_jobs(jobs, frozenset(), Pool(1), lambda: None) == 0 and all(map(is_done, jobs))
    assert np.fromfile(jobs[0].signatures, np.uint32).reshape(60, -1).shape[1] <= 64 and jobs[1].signatures.stat().st_size == 0
    assert len(json.loads(jobs[0].index.read_text())["entries"]) == 60
