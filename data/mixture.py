"""An entry of the mixture -> where its records are and what they are.

In: a recipe made from its options, and what the entry says of its records. Out: a Found: text, as a Recipe of documents, or records
of a stated format. Where the entry leaves it open, the first records tell, in the order in which they will be read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from pydantic import TypeAdapter, ValidationError

from data.formats.index import SAMPLE, Format, candidates, detect, rename
from data.recipes.as_text import AsText
from data.recipes.index import LOCATIONS, find_recipe
from data.recipes.recipe import Location, Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What an entry turned out to be: exactly one of `text` and `format` is set."""

    text: Recipe | None = None
    location: Location | None = None
    """Where the records are; None for a recipe that makes its documents."""
    format: Format | None = None
    sampled: int | None = None
    """How many first records told it; None when the entry did."""

    @property
    def kind(self) -> str:
        return "text" if self.format is None else self.format.kind

    def facts(self) -> dict[str, object]:
        """For the report."""
        return {"kind": self.kind, "format": "text" if self.format is None else self.format.name, "detected_from": self.sampled,
                "revision": None if self.location is None else self.location.version()}


def make_recipe(name: str, options: Mapping[str, object]) -> Recipe | Location:
    """A recipe from its options. ValueError for an unknown name, an unknown or missing option, or a wrong type."""
    try:
        # as JSON, because strict validation takes an object of the class or JSON, not a mapping
        return TypeAdapter(find_recipe(name)).validate_json(json.dumps(options, default=str))
    except ValidationError as error:
        issues = "; ".join(": ".join(filter(None, ('.'.join(map(str, issue['loc'])), issue['msg'].removeprefix('Value error, ')))) for issue in error.errors())
        raise ValueError(f"options of recipe '{name}': {issues}") from None


def check_entry(recipe: str, options: Mapping[str, object], kind: str, record_format: str, fields: Mapping[str, str]) -> None:
    """ValueError for settings that contradict each other; nothing is read."""
    if recipe not in LOCATIONS:
        if kind not in ("auto", "text") or record_format != "auto" or fields:
            raise ValueError(f"recipe '{recipe}' makes text; remove kind, record_format and fields")
        return
    if options.get("field") is not None and (kind not in ("auto", "text") or record_format != "auto" or fields):
        raise ValueError("the option `field` says that the source is text; remove it, or kind, record_format and fields")
    if kind == "text" and (record_format != "auto" or not set(fields) <= {"text"}):
        raise ValueError("a text source has no record_format, and its one field is `text`")
    if kind != "text":
        candidates(kind, record_format)


def is_surely_text(recipe: str, options: Mapping[str, object], kind: str, fields: Mapping[str, str]) -> bool:
    """Whether the entry alone says that it is text."""
    return recipe not in LOCATIONS or kind == "text" or (options.get("field") or fields.get("text")) is not None


def find(recipe: str, options: Mapping[str, object], *, kind: str, record_format: str, fields: Mapping[str, str]) -> Found:
    """What the entry is. ValueError when it names nothing readable, or its records are of no known format."""
    made = make_recipe(recipe, options)
    if recipe not in LOCATIONS:
        return Found(text=made)
    if is_surely_text(recipe, options, kind, fields):
        return Found(text=AsText(made, options.get("field") or fields.get("text") or "text"), location=made)
    named = candidates(kind, record_format)
    if len(named) == 1:
        return Found(location=made, format=named[0])
    sample = [rename(value, fields) for value in islice(_records(made), SAMPLE)]
    if not sample:
        raise ValueError(f"recipe '{recipe}' finds no record to tell the format by; name the kind")
    form = detect(sample, kind, record_format)
    if form is None:
        return Found(text=AsText(made, "text"), location=made, sampled=len(sample))
    return Found(location=made, format=form, sampled=len(sample))


def _records(location: Location) -> Iterator[dict]:
    return (row.value for piece in location.pieces() for row in location.rows(piece) if isinstance(row.value, dict))
