"""What a recipe is: a frozen dataclass whose fields are its options, of one of two sorts.

A `Recipe` makes documents: `parts` names independently readable pieces in a fixed order, `stamp` says which version of a piece is
there, and `read` yields its documents. A `Location` is a place that holds records of any kind, read piece by piece in the same
way by `rows`; AsText (as_text.py) makes a Recipe of one that holds text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from data.problems import ProblemSource
from data.sources.readers import Fault, Row

Part = tuple[str, ...]


class Record(NamedTuple):
    """One document of a source."""

    text: str | None
    """None when it cannot be decoded, or does not fit."""
    group: str | None = None
    """Documents of one group share a split, such as a module and its documentation; None: the text is its own group."""
    fault: Fault | None = None
    """Why it does not fit the format of its source."""
    place: str = ""
    """Where it stands, for messages; may be empty where nothing can be at fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a recipe may know about the corpus it contributes to."""

    target_bytes: int
    """UTF-8 bytes wanted from this source; a generator makes about that much, a fixed corpus ignores it."""
    problems: ProblemSource


class Recipe(Protocol):
    """A source of documents."""

    def parts(self, scope: Scope) -> list[Part]:
        """The pieces, each readable on its own, in a fixed order. ValueError when there are none."""
        ...

    def stamp(self, part: Part) -> str:
        """A text that changes when the piece's content may have changed; it guards results kept from an interrupted run."""
        ...

    def read(self, part: Part, scope: Scope) -> Iterator[Record]:
        """The documents of one piece, in order. ValueError names the place where a piece is damaged."""
        ...


class Location(Protocol):
    """A place that holds records."""

    def pieces(self) -> list[Part]:
        """The pieces, each readable on its own, in a fixed order. ValueError when there are none."""
        ...

    def stamp(self, part: Part) -> str:
        """As Recipe.stamp."""
        ...

    def rows(self, part: Part, columns: Sequence[str] | None = None) -> Iterator[Row]:
        """The records of one piece, in order; only `columns` where that saves work. ValueError when the piece is damaged."""
        ...

    def local_files(self) -> list[Path]:
        """Files of this machine that it reads; DVC must know them. Empty for a remote place."""
        ...

    def version(self) -> str | None:
        """What names the version of a place whose content DVC does not hash; None for files of this machine."""
        ...
