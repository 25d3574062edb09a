"""Readers: files of text in any common shape -> one record at a time.

In: JSONL, a JSON array, plain text, Markdown, CSV / TSV or Parquet, bare or as .gz / .zst. Out: an iterator over records, each a
string (maybe empty) or None when its bytes are not UTF-8. Whoever reads decides what to do with empty and undecodable ones and
counts them. Malformed files stop with a ValueError that names the file and the line. Only a JSON array is held whole in memory.
"""

from __future__ import annotations

import csv
import glob
import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow
import pyarrow.parquet
import zstandard

COMPRESSIONS = (".gz", ".zst")
FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".txt": "text", ".text": "text", ".md": "text", ".markdown": "text",
           ".rst": "text", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
DOCUMENT_UNITS = ("file", "line", "paragraph")
_MISSING = object()


def expand_paths(patterns: list[str]) -> list[Path]:
    """Files named by paths and globs (`**` crosses folders), each once, sorted. ValueError for one that matches nothing."""
    found: set[str] = set()
    for pattern in patterns:
        named = [pattern] if Path(pattern).exists() else glob.glob(pattern, recursive=True)  # a real name may hold "["
        matches = [path for path in named if Path(path).is_file()]
        if not matches:
            hint = f"write '{pattern}/**/*.jsonl' for a folder's files" if Path(pattern).is_dir() else f"looked from {Path.cwd()}"
            raise ValueError(f"no file matches '{pattern}'; expected a path or glob that names at least one file ({hint})")
        found.update(matches)
    return [Path(path) for path in sorted(found)]


def detect_format(path: Path) -> str:
    """Format by file name, after any .gz / .zst. ValueError lists the suffixes there are."""
    name = path.name.removesuffix(path.suffix) if path.suffix in COMPRESSIONS else path.name
    suffix = Path(name).suffix.lower()
    if suffix not in FORMATS:
        raise ValueError(f"{path}: cannot tell the format of '{suffix}' files; name one of {sorted(set(FORMATS.values()))} in the option `format`")
    return FORMATS[suffix]


def read_texts(path: Path, *, format: str, field: str | None, documents: str) -> Iterator[str | None]:
    """Records of one file in order: a string, or None for one that is not valid UTF-8.

    format: "auto" or a value of FORMATS. field: the record's text field (JSON, CSV, Parquet; plain text has none).
    documents: what one document of a plain text file is ("file", "line" or "paragraph"; ignored by the other formats).
    ValueError: malformed line (with its number), missing field, damaged compression, unknown format.
    """
    kind = detect_format(path) if format == "auto" else format
    readers: dict[str, Callable[[], Iterator[str]]] = {
        "jsonl": lambda: _read_jsonl(path, _needed(field, path, kind)),
        "json": lambda: _read_json(path, _needed(field, path, kind)),
        "csv": lambda: _read_csv(path, _needed(field, path, kind), ","),
        "tsv": lambda: _read_csv(path, _needed(field, path, kind), "\t"),
        "parquet": lambda: _read_parquet(path, _needed(field, path, kind)),
        "text": lambda: _read_plain(path, documents),
    }
    if kind not in readers:
        raise ValueError(f"unknown format '{kind}'; expected auto or one of {', '.join(sorted(readers))}")
    try:
        for text in readers[kind]():
            yield text if is_utf8(text) else None
    except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
        raise ValueError(f"{path} is damaged or cut short ({error}); copy it again") from error


def is_utf8(text: str) -> bool:
    """False when the text stands for undecodable bytes, or a JSON escape made half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _needed(field: str | None, path: Path, kind: str) -> str:
    if not field:
        raise ValueError(f"{path}: {kind} records have named fields; name the one that holds the text in the option `field`")
    return field


def _open_bytes(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".zst":
        raw = path.open("rb")
        return io.BufferedReader(_ZstdFile(raw))
    return path.open("rb")


class _ZstdFile(io.RawIOBase):
    """A .zst file of any number of frames; unlike the library's reader it refuses a file that ends inside a frame."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw, self._frame, self._ready, self._rest = raw, None, memoryview(b""), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        while not self._ready:
            chunk = self._rest or self._raw.read(1 << 16)
            if not chunk:
                if self._frame is not None:
                    raise EOFError("the last zstd frame is incomplete")
                return 0
            self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
            self._ready = memoryview(self._frame.decompress(chunk))  # a view: cutting pieces off copies nothing
            self._rest = b""
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def _open_text(path: Path, newline: str | None) -> io.TextIOWrapper:
    """Undecodable bytes come through as lone surrogates, so that only the record they stand in is lost; a leading BOM is dropped."""
    return io.TextIOWrapper(_open_bytes(path), encoding="utf-8-sig", errors="surrogateescape", newline=newline)


def _read_jsonl(path: Path, field: str) -> Iterator[str]:
    """Lines end at LF or CRLF and nowhere else: U+2028 or a lone CR inside a JSON text is no boundary. Blank lines are no records."""
    with _open_text(path, newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _text_of(_parse(line, f"{path}:{number}"), field, f"{path}:{number}")


def _parse(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not valid JSON ({error.msg} at column {error.colno}): {text.strip()[:60]!r}; correct or remove the line") from error
    except RecursionError as error:
        raise ValueError(f"{where}: JSON nested too deeply; expected a flat record") from error


def _read_json(path: Path, field: str) -> Iterator[str]:
    """A JSON array of records; a .json file that does not open with "[" is read as JSONL, which many of them are."""
    with _open_text(path, newline=None) as handle:
        first = handle.read(1)
        while first and first.isspace():
            first = handle.read(1)
        if first == "[":
            for number, record in enumerate(_parse(first + handle.read(), str(path)), 1):
                yield _text_of(record, field, f"{path}, record {number}")
            return
    yield from _read_jsonl(path, field)


def _text_of(record: object, field: str, where: str) -> str:
    """The text field of a record. null counts as empty; a missing field or another type is an error, not a guess."""
    if not isinstance(record, dict):
        raise ValueError(f"{where}: got {type(record).__name__}, expected an object with the field '{field}'")
    value = record.get(field, _MISSING)
    if value is _MISSING:
        raise ValueError(f"{where}: no field '{field}' (got {', '.join(sorted(map(str, record))) or 'none'}); name the right one in the option `field`")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{where}: field '{field}' holds {type(value).__name__}, expected text")
    return value


def _read_csv(path: Path, field: str, delimiter: str) -> Iterator[str]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the library's limit of 131,072 characters would refuse a long document
    with _open_text(path, newline="") as handle:
        rows = csv.DictReader(handle, delimiter=delimiter, strict=True)
        try:
            for row in rows:
                yield _text_of(row, field, f"{path}:{rows.line_num}")
        except csv.Error as error:
            raise ValueError(f"{path}:{rows.line_num}: not valid CSV ({error}); correct or remove the row") from error


def _read_parquet(path: Path, field: str) -> Iterator[str]:
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            if field not in table.schema_arrow.names:
                raise ValueError(f"{path}: no field '{field}' (got {', '.join(table.schema_arrow.names)}); name the right one in the option `field`")
            rows = (value for batch in table.iter_batches(batch_size=256, columns=[field]) for value in batch.column(0).to_pylist())
            for number, value in enumerate(rows, 1):
                yield _text_of({field: value}, field, f"{path}, record {number}")
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} is not a readable Parquet file ({error}); write it again") from error


def _read_plain(path: Path, documents: str) -> Iterator[str]:
    """Line ends become LF. "file": the whole file; "line": every line; "paragraph": runs of lines between blank ones."""
    if documents not in DOCUMENT_UNITS:
        raise ValueError(f"option `documents`: got '{documents}', expected one of {', '.join(DOCUMENT_UNITS)}")
    with _open_text(path, newline=None) as lines:
        if documents == "file":
            yield lines.read()
        elif documents == "line":
            yield from (line.removesuffix("\n") for line in lines)
        else:
            yield from _paragraphs(lines)


def _paragraphs(lines: Iterator[str]) -> Iterator[str]:
    block: list[str] = []
    for line in lines:
        if line.strip():
            block.append(line)
        elif block:
            yield "".join(block).removesuffix("\n")
            block = []
    if block:
        yield "".join(block).removesuffix("\n")
