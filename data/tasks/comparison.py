"""Largest or smallest of two to four distinct numbers. Key: which end, and the set of numbers."""

from __future__ import annotations

from random import Random

from data.tasks.problem import Problem

_PAIR = {"largest": ("Which is larger, {a} or {b}?", "Which number is bigger: {a} or {b}?"),
         "smallest": ("Which is smaller, {a} or {b}?", "Which number is less: {a} or {b}?")}
_MANY = {"largest": ("What is the largest of {list}?", "Find the biggest number: {list}."),
         "smallest": ("What is the smallest of {list}?", "Find the least number: {list}.")}


def draw(rng: Random) -> Problem:
    """One comparison."""
    end = rng.choice(("largest", "smallest"))
    values = rng.sample(range(10 ** rng.choice((1, 2, 2, 3))), rng.choice((2, 3, 4)))
    if len(values) == 2:
        prompt = rng.choice(_PAIR[end]).format(a=values[0], b=values[1])
    else:
        prompt = rng.choice(_MANY[end]).format(list=", ".join(map(str, values)))
    return Problem(
        key=f"{end} {' '.join(map(str, sorted(values)))}",
        prompt=prompt,
        answer=str(max(values) if end == "largest" else min(values)),
    )
