"""Problems by split: which problem is number i of a task, and sets of distinct ones.

In: task names with weights, a seed, split fractions. Out: Problems, each a pure function of (seed, stream, task, index, split).
A task's problems are divided among the splits by their semantic key, so whatever draws for training (text, chats, RL prompts) can
never meet a held-out problem, in any wording and at any count. A task too small for what is asked is refused, never padded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from data.split import apportion, split_of
from data.tasks import Problem, find_task

_TRIES_PER_DRAW = 20_000
_TRIES_PER_DISTINCT = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemSource:
    """Everything that decides which problems there are."""

    seed: int
    tasks: Mapping[str, float]
    """Task name -> weight among all problems."""
    val_fraction: float
    test_fraction: float

    def draw(self, stream: str, task: str, index: int, split: str) -> Problem:
        """Problem `index` of `task` in `split`; streams ("text", "chat", ...) are independent of each other.

        ValueError when the split owns (almost) none of the task's problems.
        """
        draw, rng = find_task(task).draw, Random(f"{self.seed}/{stream}/{task}/{index}/{split}")
        for _ in range(_TRIES_PER_DRAW):
            problem = draw(rng)
            if split_of(f"{task}: {problem.key}", self.val_fraction, self.test_fraction) == split:
                return problem
        raise ValueError(
            f"task '{task}' has no problem in split '{split}' (tried {_TRIES_PER_DRAW:,}); raise prepare.{split}_fraction"
            if split != "train" else f"task '{task}' has no problem left for training; lower val_fraction or test_fraction"
        )

    def pick_task(self, rng: Random) -> str:
        """A task name with probability proportional to its weight."""
        names = sorted(name for name, weight in self.tasks.items() if weight > 0)
        return rng.choices(names, [self.tasks[name] for name in names])[0]

    def distinct(self, stream: str, split: str, count: int) -> tuple[list[tuple[str, Problem]], int]:
        """`count` (task, problem) pairs with distinct keys and prompts, tasks in proportion to their weights, in shuffled order.

        Also the number of draws passed over as repeats. ValueError when a task has too few distinct problems.
        """
        chosen: list[tuple[str, Problem]] = []
        prompts: set[str] = set()
        repeats = 0
        for task, wanted in apportion(count, self.tasks).items():
            keys: set[str] = set()
            index = 0
            while len(keys) < wanted:
                if index >= 1000 + _TRIES_PER_DISTINCT * wanted:
                    raise ValueError(
                        f"task '{task}' gave only {len(keys)} distinct {split} problems in {index:,} draws, {wanted} are asked for; lower "
                        f"prepare.num_problems.{split}, lower prepare.tasks.{task}" + ("" if split == "train" else f" or raise prepare.{split}_fraction")
                    )
                problem = self.draw(stream, task, index, split)
                index += 1
                if problem.key in keys or problem.prompt in prompts:
                    repeats += 1
                    continue
                keys.add(problem.key)
                prompts.add(problem.prompt)
                chosen.append((task, problem))
        Random(f"{self.seed}/{stream}/{split}/order").shuffle(chosen)
        return chosen, repeats


def render(task: str, problem: Problem) -> str:
    """A problem as plain text for pretraining: the question, then the worked answer."""
    return f"{problem.prompt}\n{find_task(task).worked_answer(problem)}"
