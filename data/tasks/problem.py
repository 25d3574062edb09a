"""What a task is: a named generator of questions with one checkable answer each.

In: a random.Random. Out: a Problem (semantic key, question, optional working, answer). The same rendering serves pretraining
text, chats, RL prompts and held-out problems: the question alone, and a short answer that ends with "#### <answer>", the marker
of GSM8K (Cobbe et al. 2021, arXiv 2110.14168).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from data.tasks.verify import MARKER, is_correct


@dataclass(frozen=True, slots=True)
class Problem:
    """One question. Two wordings of the same question share `key`, so that no split can hold a paraphrase of another's."""

    key: str
    prompt: str
    answer: str
    working: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """A named family of problems."""

    name: str
    draw: Callable[[Random], Problem]
    """One problem, a pure function of the generator's state."""

    def generate(self, rng: Random, n: int) -> list[Problem]:
        """`n` problems, repeats possible."""
        return [self.draw(rng) for _ in range(n)]

    def worked_answer(self, problem: Problem) -> str:
        """The assistant's text: working, if any, then the marked answer on a line of its own."""
        return f"{problem.working}\n{MARKER} {problem.answer}" if problem.working else f"{MARKER} {problem.answer}"

    def verify(self, completion: str, answer: str) -> bool:
        """Whether a completion ends in the right marked answer."""
        return is_correct(completion, answer)


def number(rng: Random, digits: int) -> int:
    """A uniform number of exactly `digits` digits; 0 counts as a one-digit number."""
    return rng.randrange(0 if digits == 1 else 10 ** (digits - 1), 10**digits)
