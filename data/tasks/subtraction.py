"""Subtraction of numbers of one or two digits with a result of at least zero. Key: the ordered pair."""

from __future__ import annotations

from random import Random

from data.tasks.problem import Problem, number

_DIGITS = ((1, 1), (2, 1), (2, 2), (2, 2))
_WORDINGS = ("What is {a} - {b}?", "Compute {a} - {b}.", "{a} - {b} = ?", "Subtract {b} from {a}.", "What is {a} minus {b}?")


def draw(rng: Random) -> Problem:
    """One subtraction."""
    b, a = sorted(number(rng, digits) for digits in rng.choice(_DIGITS))
    return Problem(
        key=f"{a} {b}",
        prompt=rng.choice(_WORDINGS).format(a=a, b=b),
        working=f"{a} - {b} = {a - b}",
        answer=str(a - b),
    )
