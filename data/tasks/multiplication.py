"""Multiplication of a one- or two-digit number by a single digit, with partial products as working. Key: the unordered pair."""

from __future__ import annotations

from random import Random

from data.tasks.problem import Problem

_WORDINGS = ("What is {a} * {b}?", "Compute {a} * {b}.", "{a} * {b} = ?", "Multiply {a} by {b}.", "What is {a} times {b}?")


def draw(rng: Random) -> Problem:
    """One multiplication."""
    a = rng.randrange(2, 10) if rng.random() < 0.3 else rng.randrange(10, 100)
    b = rng.randrange(2, 10)
    return Problem(
        key="{} {}".format(*sorted((a, b))),
        prompt=rng.choice(_WORDINGS).format(a=a, b=b),
        working=_working(a, b),
        answer=str(a * b),
    )


def _working(a: int, b: int) -> str:
    tens, ones = a - a % 10, a % 10
    if tens == 0 or ones == 0:
        return f"{a} * {b} = {a * b}"
    return f"{tens} * {b} + {ones} * {b} = {tens * b} + {ones * b} = {a * b}"
