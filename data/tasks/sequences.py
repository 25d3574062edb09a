"""The next number of an arithmetic sequence, rising or falling. Key: first term and step."""

from __future__ import annotations

from random import Random

from data.tasks.problem import Problem

_WORDINGS = ("What comes next: {list}?", "Continue the sequence: {list}.", "Find the next number after {list}.")


def draw(rng: Random) -> Problem:
    """Four terms are shown; every term is at least zero."""
    step, first = rng.randrange(1, 13), rng.randrange(0, 60)
    terms = [first + i * step for i in range(5)]
    if rng.random() < 0.3:
        terms.reverse()
    sign, difference = ("+", step) if terms[0] < terms[1] else ("-", step)
    return Problem(
        key=f"{terms[0]} {sign}{difference}",
        prompt=rng.choice(_WORDINGS).format(list=", ".join(map(str, terms[:4]))),
        working=f"{terms[3]} {sign} {difference} = {terms[4]}",
        answer=str(terms[4]),
    )
