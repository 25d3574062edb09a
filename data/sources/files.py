"""Files by name: which there are, what is in them, and their bytes as text.

In: paths, globs and folders; names ending in a format's suffix, then perhaps .gz or .zst. Out: Files, which readers open as often
as they like, from this machine or any place that can open bytes by name. Undecodable bytes never stop a reader: they come through
as lone surrogates, so that only the record they stand in is lost, and is counted.
"""

from __future__ import annotations

import codecs
import glob
import gzip
import io
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import zstandard

COMPRESSIONS = (".gz", ".zst")
FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".txt": "text", ".text": "text", ".md": "text", ".markdown": "text",
           ".rst": "text", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),  # before UTF-16, whose mark begins the same
         (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_MARK = "headrace.mark"


@dataclass(frozen=True, slots=True)
class File:
    """Bytes with a name. `open` gives a new reader, at the start, each time it is called."""

    name: str
    open: Callable[[], BinaryIO]


def local_file(path: Path) -> File:
    """A file of this machine."""
    return File(str(path), partial(path.open, "rb"))


def expand_paths(patterns: list[str]) -> list[Path]:
    """Files named by paths, globs (`**` crosses folders) and folders, each once, sorted.

    A folder stands for every file of a known format below it; names that begin with a dot are passed over. ValueError for a
    pattern that matches nothing.
    """
    found: set[str] = set()
    for pattern in patterns:
        if Path(pattern).is_dir():
            matches = [str(path) for path in Path(pattern).rglob("*") if path.is_file() and is_known(path.relative_to(pattern).as_posix())]
        else:
            named = [pattern] if Path(pattern).exists() else glob.glob(pattern, recursive=True)  # a real name may hold "["
            matches = [path for path in named if Path(path).is_file()]
        if not matches:
            hint = f"it holds no file that ends in {', '.join(FORMATS)}" if Path(pattern).is_dir() else f"looked from {Path.cwd()}"
            raise ValueError(f"no file matches '{pattern}'; expected a path, glob or folder that names at least one file ({hint})")
        found.update(matches)
    return [Path(path) for path in sorted(found)]


def is_known(name: str) -> bool:
    """Whether the name's suffix tells its format and no part of it is hidden."""
    return _suffix(name) in FORMATS and not any(part.startswith(".") for part in PurePosixPath(name).parts)


def file_format(name: str) -> str:
    """Format by file name, after any .gz / .zst. ValueError lists the formats there are."""
    suffix = _suffix(name)
    if suffix not in FORMATS:
        raise ValueError(f"{name}: cannot tell the format of '{suffix}' files; name one of {sorted(set(FORMATS.values()))} in the option `format`")
    return FORMATS[suffix]


def _suffix(name: str) -> str:
    path = PurePosixPath(name)
    return (PurePosixPath(path.stem) if path.suffix in COMPRESSIONS else path).suffix.lower()


def check_encoding(name: str) -> None:
    """ValueError unless `name` is "auto" or a text encoding of Python's."""
    try:
        known = name == "auto" or codecs.lookup(name)._is_text_encoding
    except LookupError:
        known = False
    if not known:
        raise ValueError(f"option `encoding`: got '{name}', expected auto or a text encoding such as utf-8, utf-16, latin-1 or cp1252")


def open_text(file: File, encoding: str, newline: str | None) -> io.TextIOWrapper:
    """The file as text. "auto" is what its byte order mark says (UTF-8, UTF-16 or UTF-32), and UTF-8 without one; marks are dropped."""
    codecs.register_error(_MARK, lambda error: ("\udcff", error.end))
    raw = open_bytes(file)
    if encoding == "auto":
        head = raw.peek(4)[:4]
        encoding = next((name for mark, name in _BOMS if head.startswith(mark)), "utf-8")
    elif codecs.lookup(encoding).name == "utf-8":
        encoding = "utf-8-sig"
    return io.TextIOWrapper(raw, encoding=encoding, errors=_MARK, newline=newline)


def open_bytes(file: File) -> io.BufferedReader | gzip.GzipFile:
    """The file's bytes, decompressed while they are read."""
    if file.name.endswith(".gz"):
        packed = gzip.GzipFile(fileobj=file.open(), mode="rb")
        packed.myfileobj = packed.fileobj  # what gzip.open sets too: closing one closes the other
        return packed
    if file.name.endswith(".zst"):
        return io.BufferedReader(_ZstdFile(file.open()))
    raw = file.open()
    return raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(_Owned(raw))


def open_seekable(file: File) -> BinaryIO:
    """The file's bytes for a reader that jumps about; a compressed file is unpacked to a temporary one first."""
    if not file.name.endswith(COMPRESSIONS):
        return file.open()
    unpacked = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    with open_bytes(file) as packed:
        shutil.copyfileobj(packed, unpacked, 1 << 20)
    unpacked.seek(0)
    return unpacked


def is_utf8(text: str) -> bool:
    """False when the text stands for undecodable bytes, or a JSON escape made half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Owned(io.RawIOBase):
    """Any readable object as a raw file, closed together with what reads it."""

    def __init__(self, inner: BinaryIO) -> None:
        self._inner = inner

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        chunk = self._inner.read(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        self._inner.close()
        super().close()


class _ZstdFile(io.RawIOBase):
    """A .zst file of any number of frames; unlike the library's reader it refuses a file that ends inside a frame."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw, self._frame, self._ready, self._rest = raw, None, memoryview(b""), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        while not self._ready:
            chunk = self._rest or self._raw.read(1 << 14)  # small, because it may unpack to a hundred times its size
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
