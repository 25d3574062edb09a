"""stages/reporting/corpus.py: columns that add up, every reason in words, and nothing said of what was not asked for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from data.cleaning.pii import MASKS
from data.cleaning.rules import LINE_RULES, PAGE_RULES
from data.corpus import DROPS
from data.ingest import REASONS
from stages.reporting import corpus, inputs, reasons
from tests.stages.reporting.finished import make_outputs, varied_prepare_report, write_json


def read(tmp_path: Path, varied: bool = False) -> inputs.Corpus:
    folders = make_outputs(tmp_path, problems=5)
    if varied:
        write_json(folders["prepare"] / "report.json", varied_prepare_report())
    return inputs.read_corpus(folders["prepare"], folders["tokenize"])


def html_of(tmp_path: Path, varied: bool = False) -> str:
    return corpus.section(read(tmp_path, varied)).body


def cells(html: str, caption: str) -> dict[str, list[str]]:
    """The table under `caption`: first cell of each row -> the others, markup left out; the head under ""."""
    rows = html.split(f">{caption}</p>")[1].split("</table>")[0].split("</tr>")[:-1]
    plain = [[re.sub("<[^>]*>", " ", cell).strip() for cell in re.split(r"</t[hd]>", row)[:-1]] for row in rows]
    return {row[0]: row[1:] for row in plain}


LEDGER = "Pretraining text: records read, dropped by reason, and kept"
RECORDS = "Chats, preferences and prompts from sources: records read, dropped by reason, and kept"


def test_drops_are_listed_by_reason_with_their_counts(tmp_path: Path) -> None:
    ledger = cells(html_of(tmp_path), LEDGER)
    assert ledger[""] == ["notes", "problems", "stdlib"]
    assert {name: row[2] for name, row in ledger.items() if name} == {
        "read": "5\u202f231", "empty": "12", "undecodable": "2", "quotes a held-out question or text": "0", "exact duplicate": "307", "over its share": "500", "kept": "4\u202f410",
    }  # fmt: skip


@pytest.mark.parametrize("caption", [LEDGER, RECORDS])
def test_every_column_adds_up(tmp_path: Path, caption: str) -> None:
    ledger = cells(html_of(tmp_path, varied=True), caption)
    for column in range(len(ledger[""])):
        numbers = {name: int(row[column].replace("\u202f", "")) for name, row in ledger.items() if name}
        parts = [numbers.pop(name) for name in list(numbers) if name.startswith("of these")]
        assert numbers.pop("read") == sum(numbers.values()) and sum(parts) in (0, numbers["kept"])


def test_every_reason_that_the_code_knows_has_words() -> None:
    """What does not fit a format comes in words already; everything else prepare counts by a name."""
    assert {*DROPS, *REASONS, *PAGE_RULES, "near_duplicate", "language", "c4_no_lines"} == set(reasons.DROPPED)
    assert {*LINE_RULES, "c4_citations", "normalised", "control_characters", "replacement_characters", *(f"masked_{kind}" for kind in MASKS)} == set(reasons.CHANGED)
    assert len(set(reasons.CHANGED.values())) == len(reasons.CHANGED)


def test_a_source_short_of_its_share_is_named(tmp_path: Path) -> None:
    html = html_of(tmp_path)
    assert "notes is 12\u202f400 estimated tokens short of its share" in html and "repeats" not in html.split("</figure>")[0]
    assert "used once, whole, and never repeated" in corpus.section(read(tmp_path / "again")).note


def test_repeats_are_named_and_the_note_does_not_deny_them(tmp_path: Path) -> None:
    part = corpus.section(read(tmp_path, varied=True))
    assert "notes is used 3 times: 236 documents, about 53\u202f100 tokens, are repeats" in part.body
    assert "never repeated" not in part.note and "repeat_cap" in part.note


def test_a_reason_unknown_to_the_page_is_shown_under_its_own_name(tmp_path: Path) -> None:
    found = read(tmp_path)
    found.sources[0].dropped["too_odd"] = 4
    assert cells(corpus.section(found).body, LEDGER)["too_odd"] == ["4", "0", "0"]


def test_what_was_not_asked_for_is_not_mentioned(tmp_path: Path) -> None:
    """The default profile: no phases, no cleaning, no sources of records; a report written without their keys reads the same."""
    html = html_of(tmp_path)
    assert "Exact duplicates in the text, over all sources: 309. Near-duplicates were not looked for." in html
    for words in ("Phases", "What cleaning changed", "Chats, preferences and prompts", "do not fit", ">Sources<", "quotes evaluation items", "Fields that nothing reads"):
        assert words not in html
    folders = make_outputs(tmp_path / "old", problems=5)
    path = folders["tokenize"] / "report.json"
    report = json.loads(path.read_text(encoding="utf-8"))
    for kind in ("text", "chat", "prompts"):
        for split in report[kind].values():
            split.pop("lengths")
    write_json(path, report)
    assert "Length of" not in corpus.section(inputs.read_corpus(folders["prepare"], folders["tokenize"])).body


def test_sources_say_what_they_are(tmp_path: Path) -> None:
    sources = cells(html_of(tmp_path, varied=True), "Sources")
    assert sources["exam"] == ["prompts", "gsm8k detected from 20 records", "not stated", "3101c7d5072418e2" * 2]
    assert sources["web"] == ["text", "text detected from 20 records", "ODC-BY", "4f2a9c81d07be365"]
    assert sources["notes"] == ["text", "text", "not stated", "on this machine"]


def test_records_of_sources_have_their_own_words_and_places(tmp_path: Path) -> None:
    html = html_of(tmp_path, varied=True)
    ledger = cells(html, RECORDS)
    assert ledger["asks what another split holds"] == ["0", "7", "0"] and ledger["over its cap"] == ["0", "12", "0"]
    assert ledger["kept"] == ["990", "1\u202f300", "300"] and ledger["of these test"] == ["50", "1\u202f300", "16"]
    unfit = cells(html, "Records that do not fit their format")
    assert unfit["dialogues"] == ["unknown role", "4", "data/raw/d.jsonl:7  data/raw/d.jsonl:31  data/raw/d.jsonl:32  data/raw/d.jsonl:90"]
    assert "Fields that nothing reads, with the records that have them. dialogues: id (999)." in html


def test_cleaning_duplicates_and_quotes(tmp_path: Path) -> None:
    html = html_of(tmp_path, varied=True)
    changed = cells(html, "What cleaning changed in the text, that of documents dropped later included")
    assert changed[""] == ["notes", "web"] and changed["lines of fewer than 5 words removed (C4)"] == ["0", "812"] and len(changed) == 4
    assert "Among 4\u202f783 different documents, 101 are near-duplicates, in 40 groups (the largest has 9), at a Jaccard similarity of 0.8" in html
    assert "61 documents, exact copies included, were dropped for a longer one" in html
    quotes = cells(html, "Text that quotes evaluation items, dropped: the first of each source")
    assert quotes["web"] == ["a1a1a1a1", "problems/test/b2b2b2b2  text/val/c3c3c3c3"]


def test_phases_stand_side_by_side_in_order(tmp_path: Path) -> None:
    phases = cells(html_of(tmp_path, varied=True), "Phases of the pretraining text: share of each source")
    assert phases["source"] == ["1. general", "2. reasoning"]
    assert phases["web"] == ["70.1\u202f% asked 70.0\u202f%", "none"] and phases["tokens (estimated)"][1] == "799\u202f700 asked 800\u202f000"


def test_lengths_are_drawn_for_each_kind_of_training_record(tmp_path: Path) -> None:
    html = html_of(tmp_path)
    assert re.findall("<h3>(Length of [a-z ]+)</h3>", html) == ["Length of text documents", "Length of chats", "Length of problems"]
    assert "the longest has 4\u202f411." in html


def test_half_of_the_rows_by_hand(tmp_path: Path) -> None:
    """Five rows in the bins 2 to 3, 2 to 3, 4 to 7, 8 to 15, 8 to 15: the third is the middle one."""
    split = inputs.Split("chats", "train", 5, 30, 0, 9, None, {15: 2, 3: 2, 7: 1})
    assert corpus._median_top(split) == 7
    assert corpus._median_top(inputs.Split("chats", "train", 1, 9, 0, 9, None, {15: 1})) == 9


def test_supervised_share_of_chats(tmp_path: Path) -> None:
    assert "107\u202f604 (61\u202f%)" in html_of(tmp_path)
