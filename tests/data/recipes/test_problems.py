"""Problems as text: reproducible in any cut, about as much as asked, each checkable."""

from __future__ import annotations

from data.problems import ProblemSource
from data.recipes.problems import Problems
from data.recipes.recipe import Scope
from data.split import split_of
from data.tasks import TASKS

SOURCE = ProblemSource(seed=2, tasks={"addition": 1.0, "sorting": 1.0, "word_problem_2": 2.0}, val_fraction=0.1, test_fraction=0.2)
RECIPE = Problems(problems_per_document=4)


def test_amount_is_a_little_over_what_is_asked() -> None:
    for target in (10_000, 300_000):
        scope = Scope(target_bytes=target, problems=SOURCE)
        texts = [record.text for part in RECIPE.parts(scope) for record in RECIPE.read(part, scope)]
        assert target < sum(len(text.encode()) for text in texts) < 1.15 * target + 1000


def test_documents_hold_worked_problems_of_the_training_share() -> None:
    scope = Scope(target_bytes=60_000, problems=SOURCE)
    (part,) = RECIPE.parts(scope)
    texts = [record.text for record in RECIPE.read(part, scope)]
    assert texts == [record.text for record in RECIPE.read(part, scope)] and len(set(texts)) == len(texts)
    assert all(text.count("#### ") == 4 and text.count("\n\n") == 3 for text in texts)
    held = [SOURCE.draw("problems", "sorting", i, "test") for i in range(200)]
    assert all(split_of(f"sorting: {problem.key}", 0.1, 0.2) == "test" for problem in held)
    lines = {line for text in texts for line in text.split("\n")}
    assert not lines & {problem.prompt for problem in held}


def test_a_piece_does_not_depend_on_how_many_there_are() -> None:
    small, large = (Scope(target_bytes=n, problems=SOURCE) for n in (20_000, 400_000))
    assert next(RECIPE.read(("5", "6"), small)) == next(RECIPE.read(("5", "6"), large)) == list(RECIPE.read(("0", "6"), large))[5]


def test_every_task_appears_in_proportion() -> None:
    scope = Scope(target_bytes=200_000, problems=SOURCE)
    text = "\n".join(record.text for part in RECIPE.parts(scope) for record in RECIPE.read(part, scope))
    stories, questions = text.count("How many"), text.count("####")
    assert abs(stories / questions - 0.5) < 0.05 and set(SOURCE.tasks) <= set(TASKS)
