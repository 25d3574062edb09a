"""Writing a row of digits backwards. Key: the row."""

from __future__ import annotations

from random import Random

from data.tasks.problem import Problem

_WORDINGS = ("Write {row} backwards.", "Reverse this row: {row}.", "What is {row} in reverse order?")


def draw(rng: Random) -> Problem:
    """One row of three to six digits."""
    digits = [str(rng.randrange(10)) for _ in range(rng.randrange(3, 7))]
    return Problem(
        key=" ".join(digits),
        prompt=rng.choice(_WORDINGS).format(row=" ".join(digits)),
        answer=" ".join(reversed(digits)),
    )
