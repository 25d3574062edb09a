"""Recipe `problems`: worked, verifiable problems as plain text, drawn from the training share of every task (data/tasks)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from data.problems import render
from data.recipes.recipe import Part, Record, Scope

_DOCUMENTS_PER_PART = 1000
_SAMPLE = 64
_MARGIN = 1.05


@dataclass(frozen=True, kw_only=True)
class Problems:
    """Options: `problems_per_document`."""

    __pydantic_config__ = {"extra": "forbid", "strict": True}
    problems_per_document: int

    def parts(self, scope: Scope) -> list[Part]:
        mean = sum(len(self._document(i, scope).encode()) for i in range(_SAMPLE)) / _SAMPLE
        count = int(scope.target_bytes * _MARGIN / mean) + 1
        return [(str(start), str(min(start + _DOCUMENTS_PER_PART, count))) for start in range(0, count, _DOCUMENTS_PER_PART)]

    def stamp(self, part: Part) -> str:
        return "generated"

    def read(self, part: Part, scope: Scope) -> Iterator[Record]:
        yield from (Record(self._document(index, scope)) for index in range(int(part[0]), int(part[1])))

    def _document(self, index: int, scope: Scope) -> str:
        source, rng = scope.problems, Random(f"{scope.problems.seed}/text/{index}")
        tasks = [source.pick_task(rng) for _ in range(self.problems_per_document)]
        drawn = [(task, source.draw("text", task, index * self.problems_per_document + i, "train")) for i, task in enumerate(tasks)]
        return "\n\n".join(render(task, problem) for task, problem in drawn)
