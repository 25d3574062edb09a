"""Every task: its answers are right by an independent solver, its problems are reproducible, and its wording is checkable."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from random import Random

import pytest

from data.tasks import TASKS, find_task
from data.tasks.problem import Problem

PINNED = {
    "addition": "What is the sum of 3 and 42?",
    "comparison": "What is the smallest of 75, 89, 13?",
    "sorting": "Sort 32, 75, 89 from largest to smallest.",
    "word_problem_2": "Leo has 19 coins. Leo loses 5 and then breaks 4. How many coins does Leo have now?",
    "rg_gcd": "Find the Greatest Common Divisor (GCD) of these numbers: 33, 33. Give only the GCD as your final answer.",
}
GAINS, LOSSES = ("buys", "finds", "gets", "wins"), ("gives", "loses", "sells", "breaks")
NAMES = sorted(TASKS)


def numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]


def solve_subtraction(prompt: str) -> int:
    a, b = numbers(prompt)
    return b - a if prompt.startswith("Subtract") else a - b


def solve_comparison(prompt: str) -> int:
    return (max if re.search("larg|bigg", prompt) else min)(numbers(prompt))


def solve_sorting(prompt: str) -> str:
    return ", ".join(map(str, sorted(numbers(prompt), reverse=bool(re.search("largest to|decreasing", prompt)))))


def solve_counting(prompt: str) -> int:
    row = re.search(r"\d( \d)+", prompt)[0].split()
    return row.count(re.search(r"\d", prompt)[0])


def solve_sequence(prompt: str) -> int:
    terms = numbers(prompt)
    return terms[-1] + terms[1] - terms[0]


def solve_story(prompt: str) -> int:
    verbs = [verb for verb in re.findall(r"[a-z]+", prompt) if verb in GAINS + LOSSES]
    start, *changes = numbers(prompt)
    assert len(verbs) == len(changes)
    return start + sum(n if verb in GAINS else -n for verb, n in zip(verbs, changes))


def solve_chain(prompt: str) -> int:
    terms = re.findall(r"([+-]?) ?(\d+)", prompt.split(":")[1])
    return sum(-int(n) if sign == "-" else int(n) for sign, n in terms)


SOLVERS: dict[str, Callable[[str], object]] = {
    "addition": lambda prompt: sum(numbers(prompt)),
    "comparison": solve_comparison,
    "counting": solve_counting,
    "multiplication": lambda prompt: math.prod(numbers(prompt)),
    "reversal": lambda prompt: re.search(r"\d( \d)+", prompt)[0][::-1],
    "sequences": solve_sequence,
    "sorting": solve_sorting,
    "subtraction": solve_subtraction,
    "word_problem_1": solve_story,
    "word_problem_2": solve_story,
    "rg_chain_sum": solve_chain,
    "rg_gcd": lambda prompt: math.gcd(*numbers(prompt)),
}


def sample(name: str, n: int = 300) -> list[Problem]:
    return TASKS[name].generate(Random(f"test {name}"), n)


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_right(name: str) -> None:
    if name not in SOLVERS:
        pytest.skip("legs of animals need the package's own table")
    for problem in sample(name):
        assert problem.answer == str(SOLVERS[name](problem.prompt)), problem


@pytest.mark.parametrize("name", NAMES)
def test_eval07_worked_answers_score_100_percent_and_others_none(name: str) -> None:
    """EVAL-07: the gold answer, given as a completion, is right; a changed one is not."""
    task = TASKS[name]
    for problem in sample(name):
        text = task.worked_answer(problem)
        assert task.verify(text, problem.answer) and text.endswith(f"#### {problem.answer}") and text.count("####") == 1
        assert not task.verify(text + "1", problem.answer) and not task.verify(problem.working, problem.answer)


@pytest.mark.parametrize("name", NAMES)
def test_each_line_of_working_is_true(name: str) -> None:
    for problem in sample(name):
        for line in filter(None, problem.working.split("\n")):
            values = [eval(side, {"__builtins__": {}}) for side in line.split(" = ")]  # noqa: S307 - our own arithmetic
            assert len(set(values)) == 1 and len(values) > 1, line
        assert not problem.working or problem.working.endswith(f"= {problem.answer}")


@pytest.mark.parametrize("name", NAMES)
def test_a_problem_is_a_function_of_the_generator_state(name: str) -> None:
    assert sample(name, 20) == sample(name, 20)
    assert TASKS[name].generate(Random("other"), 20) != sample(name, 20)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_wording_never_has_two_keys_or_answers(name: str) -> None:
    by_prompt: dict[str, set[tuple[str, str]]] = {}
    for problem in sample(name, 3000):
        by_prompt.setdefault(problem.prompt, set()).add((problem.key, problem.answer))
    assert all(len(found) == 1 for found in by_prompt.values())


@pytest.mark.parametrize(("name", "at_least"), [("multiplication", 600), ("sequences", 1000), ("word_problem_1", 1500), ("rg_gcd", 1000), ("addition", 1900)])
def test_there_are_enough_distinct_problems(name: str, at_least: int) -> None:
    assert len({problem.key for problem in sample(name, 5000)}) >= at_least


def test_keys_join_what_is_the_same_question() -> None:
    """DATA-13: the numbers in another order, or the story about someone else, is the same problem."""
    keys: dict[str, set[str]] = {}
    for problem in sample("addition", 5000):
        keys.setdefault(" ".join(sorted(map(str, numbers(problem.prompt)))), set()).add(" ".join(sorted(problem.key.split())))
    assert all(len(found) == 1 for found in keys.values())
    assert all(not set(problem.key.split()) & {"Ana", "Ben", "apples"} for problem in sample("word_problem_1"))
    swapped = [p for p in sample("rg_gcd", 3000) if numbers(p.prompt)[0] > numbers(p.prompt)[1]]
    straight = {tuple(numbers(p.prompt)): p.key for p in sample("rg_gcd", 3000)}
    shared = [p for p in swapped if tuple(reversed(numbers(p.prompt))) in straight]
    assert shared and all(straight[tuple(reversed(numbers(p.prompt)))] == p.key for p in shared)


def test_draws_are_pinned() -> None:
    """A refactor that moves a random draw changes every corpus: change these lines only on purpose."""
    assert {name: TASKS[name].draw(Random("pinned")).prompt for name in PINNED} == PINNED


def test_unknown_task_lists_the_names() -> None:
    with pytest.raises(ValueError, match="unknown task 'additon'; expected one of addition, comparison"):
        find_task("additon")
