"""stages/reporting/corpus.py: every drop by reason, shortfalls in words."""

from __future__ import annotations

from pathlib import Path

from stages.reporting import corpus, inputs
from tests.stages.reporting.finished import make_outputs


def read(tmp_path: Path) -> inputs.Corpus:
    folders = make_outputs(tmp_path, problems=5)
    return inputs.read_corpus(folders["prepare"], folders["tokenize"])


def test_drops_are_listed_by_reason_with_their_counts(tmp_path: Path) -> None:
    html = corpus.section(read(tmp_path)).body
    for words in ("quotes a held-out question", "over its share", "duplicate", "undecodable", "empty"):
        assert words in html
    row = html.split(">stdlib</th>")[1].split("</tr>")[0]
    assert [cell.split("<")[0] for cell in row.split('class="number">')[1:]] == ["5\u202f231", "4\u202f410", "12", "2", "0", "307", "500"]


def test_a_source_short_of_its_share_is_named(tmp_path: Path) -> None:
    assert "notes is 12\u202f400 estimated tokens short of its share" in corpus.section(read(tmp_path)).body


def test_a_reason_unknown_to_the_page_is_shown_under_its_own_name(tmp_path: Path) -> None:
    found = read(tmp_path)
    found.sources[0].dropped["too_odd"] = 4
    html = corpus.section(found).body
    assert "too_odd" in html and "not available" in html  # the other sources do not say


def test_supervised_share_of_chats(tmp_path: Path) -> None:
    assert "107\u202f604 (61\u202f%)" in corpus.section(read(tmp_path)).body
