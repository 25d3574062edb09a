"""Readers: every format gives back the texts that were written; whatever is wrong is named with its place."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.recipes.as_text import AsText
from data.recipes.local import Local
from data.sources.files import File, local_file
from data.sources.readers import Row, read_rows

TEXTS = ["plain", "two\nlines", "CR\r\nLF inside", "", "   ", "Ünïcödé \u2028 \x85 漢字 🙂", 'quote " comma , tab\t', "x" * 200_000]


def read(path: Path, field: str | None = "text", **options: str) -> list[str | None]:
    """The texts of a file as prepare takes them; ValueError for the first record that has none."""
    source = AsText(Local(paths=[str(path)], **options), field or "text")
    texts = []
    for part in source.parts(None):
        for record in source.read(part, None):
            if record.fault:
                raise ValueError(record.fault.at(record.place))
            texts.append(record.text)
    return texts


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


def as_arrow(texts: list[str], new: Callable) -> bytes:
    buffer = io.BytesIO()
    table = pyarrow.table({"n": range(len(texts)), "text": texts})
    with new(buffer, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return buffer.getvalue()


WRITERS: dict[str, Callable[[list[str]], bytes]] = {
    "a.jsonl": as_jsonl,
    "a.ndjson": lambda texts: as_jsonl(texts, ensure_ascii=True),
    "a.json": lambda texts: json.dumps([{"text": text} for text in texts], indent=1).encode(),
    "lines.json": as_jsonl,
    "a.csv": as_csv,
    "a.parquet": as_parquet,
    "a.arrow": lambda texts: as_arrow(texts, pyarrow.ipc.new_file),
    "stream.arrow": lambda texts: as_arrow(texts, pyarrow.ipc.new_stream),
}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": lambda raw: zstandard.compress(raw[:1000]) + zstandard.compress(raw[1000:]),  # several frames, as parallel writers make
}


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_back_the_texts(tmp_path: Path, name: str, packing: str) -> None:
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


ENCODINGS = {
    "utf-8-sig": ("auto", "utf-8-sig"), "utf-16 with mark": ("auto", "utf-16"), "utf-16 big end first": ("utf-16", "utf-16"), "utf-32": ("auto", "utf-32"),
    "latin-1": ("latin-1", "latin-1"), "cp1252": ("cp1252", "cp1252"), "utf-8 by name, with mark": ("utf8", "utf-8-sig"),
}


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize(("option", "encoding"), ENCODINGS.values(), ids=ENCODINGS)
def test_encodings(tmp_path: Path, option: str, encoding: str, packing: str) -> None:
    texts = ["Ünïcödé café", "line\r\nends", "x" * 20_000]
    for name, raw in (("a.jsonl", as_jsonl(texts).decode()), ("a.csv", as_csv(texts).decode()), ("a.json", json.dumps([{"text": text} for text in texts]))):
        (tmp_path / (name + packing)).write_bytes(PACKERS[packing](raw.encode(encoding)))
        assert read(tmp_path / (name + packing), encoding=option) == texts
    (tmp_path / f"a.txt{packing}").write_bytes(PACKERS[packing]("é\r\nà\n".encode(encoding)))
    assert read(tmp_path / f"a.txt{packing}", field=None, documents="line", encoding=option) == ["é", "à"]


def test_undecodable_bytes_of_other_encodings_are_marked_too(tmp_path: Path) -> None:
    good = "good\n".encode("utf-16-le")
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe" + good + b"\x00\xd8" + "x\n".encode("utf-16-le") + good[:-1])  # half a pair, then half a unit at the end
    assert read(tmp_path / "a.txt", field=None, documents="line") == ["good", None, None]
    (tmp_path / "b.txt").write_bytes(b"caf\xe9\n\x81\n")
    assert read(tmp_path / "b.txt", field=None, documents="line", encoding="cp1252") == ["café", None]


def test_rows_have_places_and_faults_and_the_reader_goes_on(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n\n{"n": \n[2]\n')
    rows = list(read_rows(local_file(tmp_path / "a.jsonl"), format="auto", documents="file", encoding="auto"))
    assert [(row.value, Path(row.place).name) for row in rows] == [({"n": 1}, "a.jsonl:1"), (None, "a.jsonl:3"), ([2], "a.jsonl:4")]
    assert [row.fault.reason if row.fault else None for row in rows] == [None, "not valid JSON", None]
    (tmp_path / "a.txt").write_text("one\ntwo\n\n\nthree\n")
    paragraphs = read_rows(local_file(tmp_path / "a.txt"), format="auto", documents="paragraph", encoding="auto")
    assert [(row.value["text"], Path(row.place).name) for row in paragraphs] == [("one\ntwo", "a.txt:1"), ("three", "a.txt:5")]
    (tmp_path / "last.txt").write_text("\none\ntwo")
    assert [row.place[-1] for row in read_rows(local_file(tmp_path / "last.txt"), format="auto", documents="paragraph", encoding="auto")] == ["2"]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "stream.arrow"])
def test_only_the_named_columns_are_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(WRITERS[name](TEXTS))
    rows = read_rows(local_file(tmp_path / name), format="auto", documents="file", encoding="auto", columns=["text"])
    assert [row.value for row in rows] == [{"text": text} for text in TEXTS]
    both = read_rows(local_file(tmp_path / name), format="auto", documents="file", encoding="auto", columns=["absent"])
    assert next(both) == Row({"n": 0, "text": TEXTS[0]}, f"{tmp_path / name}, record 1")


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.txt"])
def test_a_file_that_is_only_a_stream_of_bytes(name: str, packing: str) -> None:
    """As a bucket gives it: short reads, no file descriptor; and everything opened is closed again."""
    opened: list[io.BytesIO] = []

    def open_it() -> io.BytesIO:
        opened.append(io.BytesIO(PACKERS[packing](WRITERS.get(name, lambda texts: "".join(texts).encode())(TEXTS))))
        return opened[-1]

    rows = list(read_rows(File(f"s3://b/{name}{packing}", open_it), format="auto", documents="file", encoding="auto"))
    assert len(rows) == (1 if name == "a.txt" else len(TEXTS)) and all(handle.closed for handle in opened) and len(opened) == 1


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
    ("a.arrow", "not arrow at all", r"a\.arrow is not a readable Arrow file"),
    ("a.csv", "text\na,b\n", r"a\.csv:2: more cells than the header has columns \('b' is the first without a name\)"),
    ("a.jsonl", '{"text": ' + "1" * 5000 + "}\n", r"a\.jsonl:1: not valid JSON \(Exceeds the limit"),
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
    with pytest.raises(ValueError, match="unknown format 'xml'; expected auto or one of arrow, csv, json"):
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


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.csv.gz", "a.txt"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, name: str) -> None:
    rng = Random(1)
    texts = [f"record {i} {rng.randbytes(500).hex()}" for i in range(12_000)]
    raw = as_csv(texts) if ".csv" in name else "\n".join(texts).encode() if name == "a.txt" else as_jsonl(texts)
    (tmp_path / name).write_bytes(zstandard.compress(raw) if name.endswith(".zst") else gzip.compress(raw, 1) if name.endswith(".gz") else raw)
    size, count = len(raw), len(texts)
    del raw, texts
    tracemalloc.start()
    read_count = sum(1 for _ in read_rows(local_file(tmp_path / name), format="auto", documents="line", encoding="auto"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read_count == count and size > 10_000_000 and peak < 1_500_000


def test_real_files(shared_data: Path) -> None:
    assert len(read(shared_data / "web" / "c4_demo.jsonl")) == 300
    assert len(read(shared_data / "gsm8k" / "train.jsonl", field="question")) == 7473
    assert len(read(shared_data / "chat" / "alpaca_en_demo.json", field="output")) == 999
    plays = read(shared_data / "text" / "tinyshakespeare.txt", field=None)
    assert len(plays) == 1 and len(plays[0]) == 1_115_394
    speeches = read(shared_data / "text" / "tinyshakespeare.txt", field=None, documents="paragraph")
    assert len(speeches) > 7000 and "\n".join(speeches) == "\n".join(line for line in plays[0].split("\n") if line)
