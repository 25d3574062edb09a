"""How often a digit occurs in a row of digits. Key: the digit and the row."""

from __future__ import annotations

from random import Random

from data.tasks.problem import Problem

_WORDINGS = ("How many times does {digit} appear in {row}?", "Count the {digit}s in {row}.", "How often does {digit} occur in this list: {row}?")


def draw(rng: Random) -> Problem:
    """One row of three to eight digits in which about a third are the wanted one."""
    digit = rng.randrange(10)
    row = " ".join(str(digit if rng.random() < 0.3 else rng.randrange(10)) for _ in range(rng.randrange(3, 9)))
    return Problem(
        key=f"{digit} in {row}",
        prompt=rng.choice(_WORDINGS).format(digit=digit, row=row),
        answer=str(row.split().count(str(digit))),
    )
