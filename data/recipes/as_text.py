"""A Location that holds text, as a Recipe: the field that holds the text, taken from every record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from data.recipes.recipe import Location, Part, Record, Scope
from data.sources.files import is_utf8
from data.sources.readers import Fault, text_of


@dataclass(frozen=True, slots=True)
class AsText:
    """See the module docstring."""

    location: Location
    field: str
    """Of the text; plain text files have it in `text`."""

    def parts(self, scope: Scope) -> list[Part]:
        return self.location.pieces()

    def stamp(self, part: Part) -> str:
        return self.location.stamp(part)

    def read(self, part: Part, scope: Scope) -> Iterator[Record]:
        for row in self.location.rows(part, (self.field,)):
            text = row.fault or text_of(row.value, self.field)
            if isinstance(text, Fault):
                yield Record(None, fault=text, place=row.place)
            else:
                yield Record(text if is_utf8(text) else None)
