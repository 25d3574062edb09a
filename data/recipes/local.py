"""Recipe `local`: your own files. JSONL, JSON arrays, text, Markdown, CSV / TSV and Parquet, bare or as .gz / .zst."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data.recipes.recipe import Part, Record, Scope
from data.sources import expand_paths, read_texts


@dataclass(frozen=True, kw_only=True)
class Local:
    """Options: `paths` (files or globs), `format` ("auto": by suffix), `field` (of the text; null for plain text), `documents`."""

    __pydantic_config__ = {"extra": "forbid", "strict": True}
    paths: list[str]
    format: Literal["auto", "jsonl", "json", "text", "csv", "tsv", "parquet"]
    field: str | None
    documents: Literal["file", "line", "paragraph"]

    def parts(self, scope: Scope) -> list[Part]:
        return [(path.as_posix(),) for path in expand_paths(self.paths)]

    def stamp(self, part: Part) -> str:
        status = Path(part[0]).stat()
        return f"{status.st_size} bytes, {status.st_mtime_ns} ns"

    def read(self, part: Part, scope: Scope) -> Iterator[Record]:
        return map(Record, read_texts(Path(part[0]), format=self.format, field=self.field, documents=self.documents))
