"""Addition of two numbers of one or two digits. Key: the unordered pair."""

from __future__ import annotations

from random import Random

from data.tasks.problem import Problem, number

_DIGITS = ((1, 1), (2, 1), (1, 2), (2, 2))
_WORDINGS = ("What is {a} + {b}?", "Compute {a} + {b}.", "{a} + {b} = ?", "Add {a} and {b}.", "What is the sum of {a} and {b}?")


def draw(rng: Random) -> Problem:
    """One addition."""
    a, b = (number(rng, digits) for digits in rng.choice(_DIGITS))
    return Problem(
        key="{} {}".format(*sorted((a, b))),
        prompt=rng.choice(_WORDINGS).format(a=a, b=b),
        working=f"{a} + {b} = {a + b}",
        answer=str(a + b),
    )
