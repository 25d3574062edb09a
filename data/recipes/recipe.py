"""What a recipe is: a frozen dataclass whose fields are its options, with three methods.

`parts` names independently readable pieces in a fixed order, `stamp` says which version of a piece is on disk, and `read` yields
the piece's records one at a time. A hub data set or a bucket prefix fits the same
way: a part is a shard's address, its stamp the object's version.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from data.problems import ProblemSource

Part = tuple[str, ...]


class Record(NamedTuple):
    """One document of a source."""

    text: str | None
    """None when it cannot be decoded."""
    group: str | None = None
    """Documents of one group share a split, such as a module and its documentation; None: the text is its own group."""


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
        """The records of one piece, in order. ValueError names the place of a malformed one."""
        ...
