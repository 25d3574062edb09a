"""Easy settings of three generators of the reasoning-gym package: sums of several terms, greatest common divisors, legs of animals.

Source: Stojanovski et al. 2025, "Reasoning Gym", arXiv 2505.24760 (Apache-2.0). Item i of a data set is a pure function of its
seed and i, so a problem is named by i. Key: the question's words in sorted order,
so that the same numbers in another order never fall into another split.
"""

from __future__ import annotations

import re
from functools import cache, partial
from random import Random
from typing import Any

from data.tasks.problem import Problem

_SPACE = 2**30
_SETTINGS: dict[str, dict[str, object]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2},
    "gcd": {"min_value": 2, "max_value": 60},
    "leg_counting": {"min_animals": 1, "max_animals": 2, "min_instances": 1, "max_instances": 6},
}


@cache
def _dataset(name: str) -> Any:
    import reasoning_gym  # here, not at the top: the import takes seconds and most runs of most modules never need it

    return reasoning_gym.create_dataset(name, seed=0, size=_SPACE, **_SETTINGS[name])


def _draw(name: str, rng: Random) -> Problem:
    item = _dataset(name)[rng.randrange(_SPACE)]
    question = " ".join(item["question"].split())
    return Problem(key=" ".join(sorted(re.findall(r"\w+|[+-]", question))), prompt=question, answer=item["answer"])


draw_chain_sum = partial(_draw, "chain_sum")
draw_gcd = partial(_draw, "gcd")
draw_leg_counting = partial(_draw, "leg_counting")
