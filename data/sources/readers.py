"""Readers: files of records in any common shape -> one Row at a time.

In: JSONL, a JSON array, plain text, Markdown, CSV / TSV, Parquet or Arrow (IPC file or stream), bare or as .gz / .zst, in any text
encoding. Out: an iterator over Rows, each a record or the fault of a line that holds none, with its place. Whoever reads decides
what a fault costs and counts it. A damaged file, as opposed to a line, stops with a ValueError that names it. Only a JSON array
is held whole in memory, because its end is as far away as its size; write large ones as JSONL.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import zstandard

from data.sources.files import File, file_format, open_seekable, open_text

DOCUMENT_UNITS = ("file", "line", "paragraph")
_ARROW_FILE_MARK = b"ARROW1"
_BATCH_ROWS = 256
_MISSING = object()


class Fault(NamedTuple):
    """Why a record cannot be used."""

    reason: str
    """Few words, the same for every record with this fault, so that they can be counted."""
    detail: str = ""
    """What this record holds, and the remedy."""

    def at(self, place: str) -> str:
        """The fault as a message."""
        return f"{place}: {self.reason} {self.detail}".rstrip()


class Row(NamedTuple):
    """One record of a file."""

    value: object
    """The record, a dict when all is well; {"text": ...} for plain text; None with a fault."""
    place: str
    """File and line, or file and record number."""
    fault: Fault | None = None


def read_rows(file: File, *, format: str, documents: str, encoding: str, columns: Sequence[str] | None = None) -> Iterator[Row]:
    """Records of one file in order.

    format: "auto" (by suffix) or a value of FORMATS. documents: what one document of a plain text file is ("file", "line" or
    "paragraph"; ignored by the other formats). encoding: "auto" or a name, for the formats that are text. columns: read only
    these where that saves work (Parquet, Arrow); None for all. ValueError: damaged file, unknown option.
    """
    kind = file_format(file.name) if format == "auto" else format
    readers: dict[str, Callable[[], Iterator[Row]]] = {
        "jsonl": lambda: _read_jsonl(file, encoding),
        "json": lambda: _read_json(file, encoding),
        "csv": lambda: _read_csv(file, encoding, ","),
        "tsv": lambda: _read_csv(file, encoding, "\t"),
        "parquet": lambda: _read_parquet(file, columns),
        "arrow": lambda: _read_arrow(file, columns),
        "text": lambda: _read_plain(file, encoding, documents),
    }
    if kind not in readers:
        raise ValueError(f"unknown format '{kind}'; expected auto or one of {', '.join(sorted(readers))}")
    try:
        yield from readers[kind]()
    except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
        raise ValueError(f"{file.name} is damaged or cut short ({error}); copy it again") from error


def text_of(record: object, field: str) -> str | Fault:
    """The text field of a record. null counts as empty; a missing field or another type is a fault, not a guess."""
    if not isinstance(record, dict):
        return Fault(f"got {type(record).__name__}, expected an object with the field '{field}'")
    value = record.get(field, _MISSING)
    if value is _MISSING:
        return Fault(f"no field '{field}'", f"(got {', '.join(sorted(map(str, record))) or 'none'}); name the right one in the option `field`")
    if value is None:
        return ""
    return value if isinstance(value, str) else Fault(f"field '{field}' holds {type(value).__name__}, expected text")


def _read_jsonl(file: File, encoding: str) -> Iterator[Row]:
    """Lines end at LF or CRLF and nowhere else: U+2028 or a lone CR inside a JSON text is no boundary. Blank lines are no records."""
    with open_text(file, encoding, newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _parse(line, f"{file.name}:{number}")


def _parse(text: str, place: str) -> Row:
    try:
        return Row(json.loads(text), place)
    except json.JSONDecodeError as error:
        return Row(None, place, Fault("not valid JSON", f"({error.msg} at column {error.colno}): {text.strip()[:60]!r}; correct or remove the line"))
    except RecursionError:
        return Row(None, place, Fault("JSON nested too deeply", "(expected a flat record)"))
    except ValueError as error:  # a number of more digits than Python converts
        return Row(None, place, Fault("not valid JSON", f"({error}); correct or remove the line"))


def _read_json(file: File, encoding: str) -> Iterator[Row]:
    """A JSON array of records; a .json file that does not open with "[" is read as JSONL, which many of them are."""
    with open_text(file, encoding, newline=None) as handle:
        first = handle.read(1)
        while first and first.isspace():
            first = handle.read(1)
        if first == "[":
            whole = _parse(first + handle.read(), file.name)
            if whole.fault:
                raise ValueError(whole.fault.at(file.name))
            for number, record in enumerate(whole.value, 1):
                yield Row(record, f"{file.name}, record {number}")
            return
    yield from _read_jsonl(file, encoding)


def _read_csv(file: File, encoding: str, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the library's limit of 131,072 characters would refuse a long document
    with open_text(file, encoding, newline="") as handle:
        rows = csv.DictReader(handle, delimiter=delimiter, strict=True)
        try:
            for row in rows:
                place = f"{file.name}:{rows.line_num}"
                extra = row.pop(None, None)
                fault = Fault("more cells than the header has columns", f"({extra[0][:60]!r} is the first without a name)") if extra else None
                yield Row(None if fault else row, place, fault)
        except csv.Error as error:
            raise ValueError(f"{file.name}:{rows.line_num}: not valid CSV ({error}); correct or remove the row") from error


def _read_parquet(file: File, columns: Sequence[str] | None) -> Iterator[Row]:
    try:
        with open_seekable(file) as handle, pyarrow.parquet.ParquetFile(handle) as table:
            batches = table.iter_batches(batch_size=_BATCH_ROWS, columns=_present(columns, table.schema_arrow.names))
            yield from _batch_rows(batches, file.name)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{file.name} is not a readable Parquet file ({error}); write it again") from error


def _read_arrow(file: File, columns: Sequence[str] | None) -> Iterator[Row]:
    """An IPC file or an IPC stream, told apart by the mark that only the first opens with."""
    try:
        with open_seekable(file) as handle:
            is_file = handle.read(len(_ARROW_FILE_MARK)) == _ARROW_FILE_MARK
            handle.seek(0)
            with (pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream)(handle) as reader:
                batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else iter(reader)
                kept = _present(columns, reader.schema.names)
                pieces = (batch.slice(start, _BATCH_ROWS) for batch in batches for start in range(0, batch.num_rows, _BATCH_ROWS))
                yield from _batch_rows((piece if kept is None else piece.select(kept) for piece in pieces), file.name)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{file.name} is not a readable Arrow file ({error}); write it again") from error


def _present(columns: Sequence[str] | None, names: Sequence[str]) -> list[str] | None:
    """The columns to read; all of them when one is missing, so that the fault can say which there are."""
    return list(columns) if columns is not None and set(columns) <= set(names) else None


def _batch_rows(batches: Iterator[pyarrow.RecordBatch], name: str) -> Iterator[Row]:
    values = (value for batch in batches for value in batch.to_pylist())
    return (Row(value, f"{name}, record {number}") for number, value in enumerate(values, 1))


def _read_plain(file: File, encoding: str, documents: str) -> Iterator[Row]:
    """Line ends become LF. "file": the whole file; "line": every line; "paragraph": runs of lines between blank ones."""
    if documents not in DOCUMENT_UNITS:
        raise ValueError(f"option `documents`: got '{documents}', expected one of {', '.join(DOCUMENT_UNITS)}")
    with open_text(file, encoding, newline=None) as lines:
        if documents == "file":
            yield Row({"text": lines.read()}, file.name)
        elif documents == "line":
            yield from (Row({"text": line.removesuffix("\n")}, f"{file.name}:{number}") for number, line in enumerate(lines, 1))
        else:
            yield from _paragraphs(lines, file.name)


def _paragraphs(lines: Iterator[str], name: str) -> Iterator[Row]:
    """Each paragraph with the number of its first line."""
    block: list[str] = []
    number = 0
    for number, line in enumerate(lines, 1):
        if line.strip():
            block.append(line)
        elif block:
            yield Row({"text": "".join(block).removesuffix("\n")}, f"{name}:{number - len(block)}")
            block = []
    if block:
        yield Row({"text": "".join(block).removesuffix("\n")}, f"{name}:{number + 1 - len(block)}")
