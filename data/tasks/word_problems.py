"""Short stories that need one or two additions or subtractions. Key: the calculation, whoever and whatever it is about."""

from __future__ import annotations

from random import Random

from data.tasks.problem import Problem

_NAMES = ("Ana", "Ben", "Carla", "David", "Emma", "Felix", "Greta", "Hugo", "Ines", "Jonas", "Kira", "Leo", "Mia", "Noah", "Olga", "Paul")
_THINGS = ("apples", "books", "cards", "coins", "eggs", "keys", "marbles", "pens", "shells", "stamps", "stones", "toys")
_GAINS = ("buys {n} more", "finds {n} more", "gets {n} from a friend", "wins {n}")
_LOSSES = ("gives away {n}", "loses {n}", "sells {n}", "breaks {n}")


def draw_one_step(rng: Random) -> Problem:
    """A start and one change."""
    return _story(rng, steps=1)


def draw_two_steps(rng: Random) -> Problem:
    """A start and two changes."""
    return _story(rng, steps=2)


def _story(rng: Random, steps: int) -> Problem:
    name, things = rng.choice(_NAMES), rng.choice(_THINGS)
    total = start = rng.randrange(3, 60)
    changes, lines = [], []
    for _ in range(steps):
        gain = total < 5 or rng.random() < 0.5
        n = rng.randrange(2, 30) if gain else rng.randrange(2, min(total, 30))
        after = total + n if gain else total - n
        changes.append((gain, n))
        lines.append(f"{total} {'+' if gain else '-'} {n} = {after}")
        total = after
    told = " and then ".join(rng.choice(_GAINS if gain else _LOSSES).format(n=n) for gain, n in changes)
    return Problem(
        key=f"{start}" + "".join(f" {'+' if gain else '-'} {n}" for gain, n in changes),
        prompt=f"{name} has {start} {things}. {name} {told}. How many {things} does {name} have now?",
        working="\n".join(lines),
        answer=str(total),
    )
