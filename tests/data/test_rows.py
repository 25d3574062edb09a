"""Prepared records to token rows, and what is counted on the way."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.rows import Tally, chat_rows, prompt_rows, read_records, sample_texts, text_rows
from data.tokenizer import control_ids, plain_encoder
from tests.data.toy_tokens import VOCAB, toy_tokenizer


def doc(i: int, text: str, source: str = "a") -> dict:
    return {"id": f"d{i}", "source": source, "text": text}


def test_documents_end_in_exactly_one_separator() -> None:
    """DATA-02, DATA-10: one real separator per document, though one quotes it and one is larger than a group."""
    texts = ["x", "the end is <|endoftext|> you see", "word " * 300_000, "é"]
    tally = Tally(VOCAB)
    rows = list(text_rows([doc(i, text) for i, text in enumerate(texts)], toy_tokenizer(), tally))
    end = control_ids(toy_tokenizer())["<|endoftext|>"]
    for row, text in zip(rows, texts, strict=True):
        assert row["tokens"].dtype == np.uint16 and row["tokens"].tolist() == [*plain_encoder(toy_tokenizer()).encode([text])[0], end]
        assert row["num_bytes"] == len(text.encode())
    assert tally.counts_V[end] == tally.rows == 4
    assert tally.spelled == {"<|endoftext|>": 1}


def test_tally_by_hand() -> None:
    tally = Tally(VOCAB)
    rows = list(text_rows([doc(0, "77"), doc(1, "789", "b"), doc(2, "7", "b")], toy_tokenizer(), tally))
    seven, end = int(rows[2]["tokens"][0]), 0
    assert tally.report() == {
        "rows": 3, "tokens": 9, "bytes": 6, "supervised_tokens": 0, "longest_row": 4, "tokens_by_source": {"a": 3, "b": 6}, "spelled_control_tokens": {},
        "forced_cuts": 0, "lengths": {"3": 2, "7": 1},
    }
    assert (tally.counts_V[seven], tally.first_counts_V[seven], tally.counts_V[end], tally.first_counts_V.sum()) == (4, 3, 3, 3)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=30))
def test_every_row_is_in_the_one_bin_that_holds_its_length(lengths: list[int]) -> None:
    tally = Tally(VOCAB)
    for length in lengths:
        tally.add(np.zeros(length, np.uint16), "a")
    assert tally.report()["lengths"] == {str(top): count for top in (2**bits - 1 for bits in range(1, 14))
                                         if (count := sum(top // 2 < length <= top for length in lengths))}


def test_tallies_add_up_and_survive_the_disk(tmp_path: Path) -> None:
    """A corpus in two parts, one of them saved and loaded, counts as the whole."""
    records = [doc(i, "7" * (i % 40 + 1) + " <|im_end|>", f"s{i % 3}") for i in range(300)]
    whole, first, second = Tally(VOCAB), Tally(VOCAB), Tally(VOCAB)
    for tally, part in ((whole, records), (first, records[:170]), (second, records[170:])):
        assert len(list(text_rows(part, toy_tokenizer(), tally))) == len(part)
    second.save(tmp_path)
    first.add_tally(Tally.load(tmp_path))
    assert first.report() == whole.report() and whole.report()["spelled_control_tokens"] == {"<|im_end|>": 300}
    assert first.counts_V.tolist() == whole.counts_V.tolist() and first.first_counts_V.tolist() == whole.first_counts_V.tolist()
    assert whole.tokens == whole.counts_V.sum() and sum(whole.lengths.values()) == 300


def test_groups_change_nothing() -> None:
    """Six hundred records cross group borders; each row is that of its record alone."""
    records = [doc(i, f"record {i}") for i in range(600)]
    rows = list(text_rows(records, toy_tokenizer(), Tally(VOCAB)))
    assert [row["id"] for row in rows] == [record["id"] for record in records]
    [alone] = text_rows([records[511]], toy_tokenizer(), Tally(VOCAB))
    assert rows[511]["tokens"].tolist() == alone["tokens"].tolist()


def test_chats_and_prompts_agree_on_the_question() -> None:
    """DATA-07: a problem's prompt is the beginning of the chat that answers it."""
    question, tally = "What is 3 + 4?", Tally(VOCAB)
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": "7\n#### 7"}]
    [chat] = chat_rows([{"id": "c", "source": "s", "messages": messages}], toy_tokenizer(), tally)
    [prompt] = prompt_rows([{"id": "p", "task": "t", "prompt": question, "answer": "7"}], toy_tokenizer(), Tally(VOCAB))
    assert chat["tokens"][: len(prompt["tokens"])].tolist() == prompt["tokens"].tolist()
    assert chat["mask"].tolist() == [0] * len(prompt["tokens"]) + [1] * tally.supervised + [0]
    assert {key: prompt[key] for key in ("id", "task", "prompt", "answer")} == {"id": "p", "task": "t", "prompt": question, "answer": "7"}


@pytest.mark.parametrize(("text", "complaint"), [("", "'d0' is empty"), ("ab\ud800", "'d0' holds half a surrogate pair at character 2")])
def test_documents_that_are_no_text_are_named(text: str, complaint: str) -> None:
    """DATA-01: no orphan separator."""
    with pytest.raises(ValueError, match=complaint):
        list(text_rows([doc(0, text)], toy_tokenizer(), Tally(VOCAB)))


def test_records_are_read_as_written_and_bad_lines_named(tmp_path: Path) -> None:
    """DATA-03: a CRLF inside a text survives."""
    path = tmp_path / "f.jsonl"
    path.write_text(json.dumps(doc(0, "a\r\nb")) + "\n" + json.dumps(doc(1, "c\u2028d"), ensure_ascii=False) + "\n", encoding="utf-8")
    assert [record["text"] for record in read_records(path)] == ["a\r\nb", "c\u2028d"]
    for bad in (b'{"id": ', b"[1]", b"\xff"):
        path.write_bytes(b'{"id": "x"}\n' + bad + b"\n")
        with pytest.raises(ValueError, match="f.jsonl, line 2"):
            list(read_records(path))
    with pytest.raises(ValueError, match="absent.jsonl does not exist; run the prepare stage"):
        list(read_records(tmp_path / "absent.jsonl"))


def test_the_sample_has_about_the_size_asked_for_and_is_stable(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text("".join(json.dumps(doc(i, f"text {i} " * 20)) + "\n" for i in range(2000)))
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "<think>why</think>there"}]
    second.write_text(json.dumps({"id": "c", "source": "s", "messages": messages}) + "\n")
    size = first.stat().st_size + second.stat().st_size
    quarter = list(sample_texts([first, second], 7, size // 4))
    assert 400 < len(quarter) < 600
    assert quarter == list(sample_texts([first, second], 7, size // 4)) != list(sample_texts([first, second], 8, size // 4))
    assert set(quarter) < set(sample_texts([first, second], 7, size // 2))
    everything = list(sample_texts([first, second], 7, 10 * size))
    assert everything[:2000] == [record["text"] for record in read_records(first)]
    assert "hello" in "".join(everything[2000:]) and "<think>" not in "".join(everything[2000:])
