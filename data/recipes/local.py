"""Recipe `local`: files of this machine, in any format of data/sources, bare or as .gz / .zst."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data.recipes.recipe import Part
from data.sources.files import check_encoding, expand_paths, file_format, local_file
from data.sources.readers import Row, read_rows


@dataclass(frozen=True, kw_only=True)
class Local:
    """Options: `paths` and how to read what they name."""

    __pydantic_config__ = {"extra": "forbid", "strict": True, "use_attribute_docstrings": True}
    paths: list[str]
    """Files, globs and folders; a folder stands for every file of a known format below it."""
    format: Literal["auto", "jsonl", "json", "text", "csv", "tsv", "parquet", "arrow"] = "auto"
    """Of the files; auto: by suffix, for each file."""
    field: str | None = None
    """The record's field that holds the text; naming it says that the source is text. null for plain text and for other kinds."""
    documents: Literal["file", "line", "paragraph"] = "file"
    """What one document of a plain text file is."""
    encoding: str = "auto"
    """Of files that are text; auto: by byte order mark, UTF-8 without one."""

    def __post_init__(self) -> None:
        check_encoding(self.encoding)

    def pieces(self) -> list[Part]:
        return [(path.as_posix(),) for path in expand_paths(self.paths)]

    def stamp(self, part: Part) -> str:
        status = Path(part[0]).stat()
        return f"{status.st_size} bytes, {status.st_mtime_ns} ns"

    def rows(self, part: Part, columns: Sequence[str] | None = None) -> Iterator[Row]:
        path = Path(part[0])
        kind = file_format(path.name) if self.format == "auto" else self.format
        rows = read_rows(local_file(path), format=kind, documents=self.documents, encoding=self.encoding, columns=columns)
        if kind != "text" or self.field in (None, "text"):
            return rows
        return (row._replace(value={self.field: row.value["text"]}) for row in rows)  # plain text beside records whose text has another name

    def local_files(self) -> list[Path]:
        return expand_paths(self.paths)

    def version(self) -> str | None:
        return None
