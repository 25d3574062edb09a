"""Which problem is which, and that no split can meet another's."""

from __future__ import annotations

from random import Random

import pytest

from data.problems import ProblemSource, render
from data.split import split_of
from data.tasks import TASKS, Problem

WEIGHTS = {name: 1.0 for name in TASKS if not name.startswith("rg_")}


def source(**changes: object) -> ProblemSource:
    return ProblemSource(**{"seed": 3, "tasks": WEIGHTS, "val_fraction": 0.1, "test_fraction": 0.1, **changes})


@pytest.mark.parametrize("task", WEIGHTS)
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_draw_is_a_function_of_its_address_and_lies_in_its_split(task: str, split: str) -> None:
    drawn = [source().draw("text", task, i, split) for i in range(40)]
    assert drawn == [source().draw("text", task, i, split) for i in range(40)]
    assert all(split_of(f"{task}: {problem.key}", 0.1, 0.1) == split for problem in drawn)
    for other in (source(seed=4).draw("text", task, 0, split), source().draw("chat", task, 0, split), source().draw("text", task, 1, split)):
        assert isinstance(other, Problem)
    assert drawn != [source(seed=4).draw("text", task, i, split) for i in range(40)]
    assert drawn != [source().draw("chat", task, i, split) for i in range(40)]


def test_data13_splits_share_no_problem_in_any_wording() -> None:
    """DATA-13: 47 + 5 for training and "Add 5 and 47." for the test would be the same question."""
    sets = {split: source().distinct("problems", split, 400)[0] for split in ("train", "val", "test")}
    keys = {split: {(task, problem.key) for task, problem in chosen} for split, chosen in sets.items()}
    prompts = {split: {problem.prompt for _, problem in chosen} for split, chosen in sets.items()}
    for a, b in (("train", "val"), ("train", "test"), ("val", "test")):
        assert not keys[a] & keys[b] and not prompts[a] & prompts[b]
    sums = {frozenset(problem.key.split()) for task, problem in sets["test"] if task == "addition"}
    trained = [source().draw("text", "addition", i, "train") for i in range(2000)]
    assert sums and not sums & {frozenset(problem.key.split()) for problem in trained}


def test_distinct_counts_shares_and_order() -> None:
    weights = {"addition": 3.0, "sorting": 1.0}
    chosen, repeats = source(tasks=weights).distinct("problems", "train", 100)
    tasks = [task for task, _ in chosen]
    assert tasks.count("addition") == 75 and tasks.count("sorting") == 25 and repeats >= 0
    assert len({(task, problem.key) for task, problem in chosen}) == len({problem.prompt for _, problem in chosen}) == 100
    assert tasks != sorted(tasks)
    assert (chosen, repeats) == source(tasks=weights).distinct("problems", "train", 100)


def test_an_exhausted_task_is_refused_with_the_count() -> None:
    with pytest.raises(ValueError, match=r"task 'multiplication' gave only \d\d distinct test problems in [\d,]+ draws, 200 are asked for; lower "):
        source(tasks={"multiplication": 1.0}).distinct("problems", "test", 200)


def test_a_split_without_problems_is_refused() -> None:
    with pytest.raises(ValueError, match="task 'addition' has no problem in split 'val'.*raise prepare.val_fraction"):
        source(val_fraction=0.0).draw("text", "addition", 0, "val")


def test_tasks_are_picked_by_weight() -> None:
    picks = [source(tasks={"sorting": 3.0, "addition": 1.0, "counting": 0.0}).pick_task(Random(i)) for i in range(2000)]
    assert "counting" not in picks and abs(picks.count("sorting") - 1500) < 100


def test_render() -> None:
    problem = Problem(key="5 47", prompt="What is 47 + 5?", answer="52", working="47 + 5 = 52")
    assert render("addition", problem) == "What is 47 + 5?\n47 + 5 = 52\n#### 52"
    assert render("addition", Problem(key="", prompt="Q", answer="1")) == "Q\n#### 1"
