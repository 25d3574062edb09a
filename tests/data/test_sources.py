"""Readers: every format gives back the texts that were written; whatever is wrong is named with its place."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.sources import detect_format, expand_paths, read_texts

TEXTS = ["plain", "two\nlines", "CR\r\nLF inside", "", "   ", "Ünïcödé \u2028 \x85 漢字 🙂", 'quote " comma , tab\t', "x" * 200_000]


def read(path: Path, field: str | None = "text", format: str = "auto", documents: str = "file") -> list[str | None]:
    return list(read_texts(path, format=format, field=field, documents=documents))


def as_jsonl(texts: list[str], end: str = "\n", ensure_ascii: bool = False) -> bytes:
    return "".join(json.dumps({"n": i, "text": text}, ensure_ascii=ensure_ascii) + end for i, text in enumerate(texts)).encode()


def as_csv(texts: list[str]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer).writerows([["n", "text"], *enumerate(texts)])
    return buffer.getvalue().encode()


def as_parquet(texts: list[str]) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"n": range(len(texts)), "text": texts}), buffer, row_group_size=3)
    return buffer.getvalue()


WRITERS: dict[str, Callable[[list[str]], bytes]] = {
    "a.jsonl": as_jsonl,
    "a.ndjson": lambda texts: as_jsonl(texts, ensure_ascii=True),
    "a.json": lambda texts: json.dumps([{"text": text} for text in texts], indent=1).encode(),
    "lines.json": as_jsonl,
    "a.csv": as_csv,
    "a.parquet": as_parquet,
}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": lambda raw: zstandard.compress(raw[:1000]) + zstandard.compress(raw[1000:]),  # several frames, as parallel writers make
}


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_back_the_texts(tmp_path: Path, name: str, packing: str) -> None:
    if name == "a.parquet" and packing:
        pytest.skip("Parquet compresses its own pages")
    path = tmp_path / (name + packing)
    path.write_bytes(PACKERS[packing](WRITERS[name](TEXTS)))
    assert read(path) == TEXTS


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(), max_size=6), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_jsonl_round_trip(tmp_path: Path, texts: list[str], end: str, ensure_ascii: bool) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(as_jsonl(texts, end, ensure_ascii))
    assert read(path) == texts


@pytest.mark.parametrize("documents", ["file", "line", "paragraph"])
def test_plain_text_by_file_line_and_paragraph(tmp_path: Path, documents: str) -> None:
    path = tmp_path / "a.md"
    path.write_bytes(b"\xef\xbb\xbfone\ntwo\n\n \nthree\n")
    expected = {"file": ["one\ntwo\n\n \nthree\n"], "line": ["one", "two", "", " ", "three"], "paragraph": ["one\ntwo", "three"]}
    assert read(path, field=None, documents=documents) == expected[documents]


@pytest.mark.parametrize("cr_at", [8190, 8191, 8192, 16383])
@pytest.mark.parametrize("documents", ["file", "line", "paragraph"])
def test_data03_crlf_at_a_buffer_boundary_in_text(tmp_path: Path, cr_at: int, documents: str) -> None:
    """DATA-03: the reader's buffers are 8192 bytes, so a CR at byte 8191 ends one."""
    lines = ["a" * cr_at, "second", "", "third", ""]
    (tmp_path / "lf.txt").write_bytes("\n".join(lines).encode())
    (tmp_path / "crlf.txt").write_bytes("\r\n".join(lines).encode())
    assert (tmp_path / "crlf.txt").read_bytes()[cr_at : cr_at + 2] == b"\r\n"
    texts = read(tmp_path / "crlf.txt", field=None, documents=documents)
    assert texts == read(tmp_path / "lf.txt", field=None, documents=documents) and "\r" not in "".join(texts)


@pytest.mark.parametrize("cr_at", [8190, 8191, 8192, 16383])
def test_data03_crlf_at_a_buffer_boundary_in_jsonl(tmp_path: Path, cr_at: int) -> None:
    """DATA-03: same records, and the escaped CRLF inside a text survives."""
    head = len('{"n": 0, "text": ""}')
    texts = ["a" * (cr_at - head), "inside\r\nkept", "last"]
    for name, end in (("lf", "\n"), ("crlf", "\r\n")):
        (tmp_path / f"{name}.jsonl").write_bytes(as_jsonl(texts, end))
    assert (tmp_path / "crlf.jsonl").read_bytes()[cr_at : cr_at + 2] == b"\r\n"
    assert read(tmp_path / "crlf.jsonl") == read(tmp_path / "lf.jsonl") == texts


def test_undecodable_records_are_marked_and_only_they(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "good"}\n{"text": "bad \xff"}\n{"text": "half \\ud800"}\n{"text": "whole \\ud83d\\ude42", "other": "\xff"}\n')
    assert read(path) == ["good", None, None, "whole 🙂"]
    (tmp_path / "a.txt").write_bytes(b"good\n\xe9t\xe9\n\xc3\xa9\n")
    assert read(tmp_path / "a.txt", field=None, documents="line") == ["good", None, "é"]
    (tmp_path / "a.csv").write_bytes(b"text\ngood\n\xff\n")
    assert read(tmp_path / "a.csv") == ["good", None]


def test_blank_lines_and_null_are_no_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('\n{"text": null}\n\n{"text": "a"}\n \n')
    assert read(path) == ["", "a"]


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.jsonl", '{"text": "a"}\n{"text": "b"\n{"text": "c"}\n', r"a\.jsonl:2: not valid JSON .*correct or remove the line"),
    ("a.jsonl", '{"text": "a"}\n{"body": "b", "id": 3}\n', r"a\.jsonl:2: no field 'text' \(got body, id\)"),
    ("a.jsonl", '{"text": 3}\n', r"a\.jsonl:1: field 'text' holds int, expected text"),
    ("a.jsonl", '["text"]\n', r"a\.jsonl:1: got list, expected an object with the field 'text'"),
    ("a.jsonl", "[" * 100_000 + "\n", r"a\.jsonl:1: JSON nested too deeply"),
    ("a.json", '[{"text": "a"}, {"tex": "b"}]', r"a\.json, record 2: no field 'text'"),
    ("a.json", '[{"text": "a"},', r"a\.json: not valid JSON"),
    ("a.csv", "id,body\n1,x\n", r"a\.csv:2: no field 'text' \(got body, id\)"),
    ("a.csv", 'text\n"open\n', r"a\.csv:\d: not valid CSV"),
    ("a.parquet", "not parquet at all", r"a\.parquet is not a readable Parquet file"),
    ("a.docx", "x", r"cannot tell the format of '\.docx' files"),
])
def test_malformed_input_is_named_with_its_place(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / name)


@pytest.mark.parametrize("packing", [".gz", ".zst"])
@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_damaged_compression_is_an_error_not_a_short_corpus(tmp_path: Path, packing: str, damage: str) -> None:
    raw = bytearray(gzip.compress(as_jsonl(TEXTS)) if packing == ".gz" else zstandard.ZstdCompressor(write_checksum=True).compress(as_jsonl(TEXTS)))
    path = tmp_path / f"a.jsonl{packing}"
    if damage == "cut":
        del raw[-20:]
    else:
        raw[-3] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(ValueError, match="is damaged or cut short|not valid JSON"):
        read(path)


def test_parquet_without_the_field_lists_the_columns(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(as_parquet(["x"]))
    with pytest.raises(ValueError, match=r"no field 'body' \(got n, text\)"):
        read(tmp_path / "a.parquet", field="body")
    with pytest.raises(ValueError, match="record 1: field 'n' holds int, expected text"):
        read(tmp_path / "a.parquet", field="n")


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ValueError, match="jsonl records have named fields; name the one"):
        read(tmp_path / "a.jsonl", field=None)
    with pytest.raises(ValueError, match="unknown format 'xml'; expected auto or one of csv, json"):
        read(tmp_path / "a.txt", format="xml")
    with pytest.raises(ValueError, match="got 'word', expected one of file, line, paragraph"):
        read(tmp_path / "a.txt", field=None, documents="word")


@pytest.mark.parametrize("unit", ["a word ", "x"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.jsonl.zst"])
def test_data11_a_record_of_20_megabytes(tmp_path: Path, name: str, unit: str) -> None:
    """DATA-11: one huge record among small ones, as prose and without any space."""
    texts = ["small", unit * (20_000_000 // len(unit)), "also small"]
    raw = as_csv(texts) if name == "a.csv" else as_jsonl(texts)
    (tmp_path / name).write_bytes(zstandard.compress(raw) if name.endswith(".zst") else raw)
    assert read(tmp_path / name) == texts


def test_expand_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b.txt", "a.txt", "deep/er/c.txt", "odd[1].txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("x")
    assert expand_paths(["*.txt", "a.txt"]) == [Path("a.txt"), Path("b.txt"), Path("odd[1].txt")]
    assert expand_paths(["**/c.txt", "odd[1].txt"]) == [Path("deep/er/c.txt"), Path("odd[1].txt")]
    with pytest.raises(ValueError, match="no file matches 'none/\\*.txt'"):
        expand_paths(["a.txt", "none/*.txt"])
    with pytest.raises(ValueError, match=r"no file matches 'deep'.*write 'deep/\*\*/\*.jsonl'"):
        expand_paths(["deep"])


@pytest.mark.parametrize(("name", "format"), [("a.jsonl.gz", "jsonl"), ("b.MD", "text"), ("c.tar.csv", "csv"), ("d.txt.zst", "text"), ("e.json", "json")])
def test_detect_format(name: str, format: str) -> None:
    assert detect_format(Path(name)) == format


def test_real_files(shared_data: Path) -> None:
    assert len(read(shared_data / "web" / "c4_demo.jsonl")) == 300
    assert len(read(shared_data / "gsm8k" / "train.jsonl", field="question")) == 7473
    assert len(read(shared_data / "chat" / "alpaca_en_demo.json", field="output")) == 999
    plays = read(shared_data / "text" / "tinyshakespeare.txt", field=None)
    assert len(plays) == 1 and len(plays[0]) == 1_115_394
    speeches = read(shared_data / "text" / "tinyshakespeare.txt", field=None, documents="paragraph")
    assert len(speeches) > 7000 and "\n".join(speeches) == "\n".join(line for line in plays[0].split("\n") if line)
