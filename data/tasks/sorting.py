"""Sorting three to five distinct numbers below 100. Key: direction, and the set of numbers."""

from __future__ import annotations

from random import Random

from data.tasks.problem import Problem

_WORDINGS = {"ascending": ("Sort {list} from smallest to largest.", "Put these numbers in increasing order: {list}."),
             "descending": ("Sort {list} from largest to smallest.", "Put these numbers in decreasing order: {list}.")}


def draw(rng: Random) -> Problem:
    """One list to sort."""
    direction = rng.choice(("ascending", "descending"))
    values = rng.sample(range(100), rng.choice((3, 3, 4, 5)))
    listed = ", ".join(map(str, values))
    return Problem(
        key=f"{direction} {' '.join(map(str, sorted(values)))}",
        prompt=rng.choice(_WORDINGS[direction]).format(list=listed),
        answer=", ".join(map(str, sorted(values, reverse=direction == "descending"))),
    )
