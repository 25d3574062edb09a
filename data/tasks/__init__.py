"""Tasks: questions with checkable answers. A task is one file with a `draw` function and one line in TASKS."""

from __future__ import annotations

from data.tasks import addition, comparison, counting, multiplication, reasoning_gym, reversal, sequences, sorting, subtraction, word_problems
from data.tasks.problem import Problem, Task
from data.tasks.verify import extract_answer, is_correct, normalise, reward

__all__ = ["TASKS", "Problem", "Task", "extract_answer", "find_task", "is_correct", "normalise", "reward"]

TASKS: dict[str, Task] = {
    name: Task(name, draw)
    for name, draw in {
        "addition": addition.draw,
        "comparison": comparison.draw,
        "counting": counting.draw,
        "multiplication": multiplication.draw,
        "reversal": reversal.draw,
        "sequences": sequences.draw,
        "sorting": sorting.draw,
        "subtraction": subtraction.draw,
        "word_problem_1": word_problems.draw_one_step,
        "word_problem_2": word_problems.draw_two_steps,
        "rg_chain_sum": reasoning_gym.draw_chain_sum,
        "rg_gcd": reasoning_gym.draw_gcd,
        "rg_leg_counting": reasoning_gym.draw_leg_counting,
    }.items()
}


def find_task(name: str) -> Task:
    """The task called `name`; ValueError lists the names there are."""
    if name not in TASKS:
        raise ValueError(f"unknown task '{name}'; expected one of {', '.join(sorted(TASKS))}")
    return TASKS[name]
