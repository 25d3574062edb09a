"""Answers of several models to the same problems, side by side.

In: evaluation records, whose texts a model wrote: untrusted, escaped, cut to a stated length. Out: one section. Problems are
chosen by a hash of seed and id, tasks taking turns, so nobody picked the flattering ones and a rerun shows the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from stages.reporting.inputs import Evaluation
from stages.reporting.markup import Markup, join, shortened, tag
from stages.reporting.page import Part


def choose(records: Sequence[Mapping], how_many: int, seed: int) -> list[str]:
    """Ids of `how_many` problems (fewer when there are not so many): tasks by name take turns, each in order of hash."""
    by_task: dict[str, list[tuple[str, str]]] = {}
    for record in records:
        by_task.setdefault(record["task"], []).append((hashlib.sha256(f"{seed}/{record['id']}".encode()).hexdigest(), record["id"]))
    turns = sorted((turn, task, problem) for task, keys in by_task.items() for turn, (_, problem) in enumerate(sorted(keys)))
    return [problem for _, _, problem in turns[:how_many]]


def section(evaluations: Mapping[str, Evaluation], chosen: Sequence[str], most_characters: int) -> Part:
    """The chosen problems with every model's greedy answer."""
    by_id = {model: {record["id"]: record for record in evaluation.records} for model, evaluation in evaluations.items()}
    body = join([_sample({model: records[problem] for model, records in by_id.items()}, most_characters) for problem in chosen])
    note = (
        f"Greedy answers of {', '.join(evaluations)} to {len(chosen)} problems chosen by hash, not by hand. "
        "Unprintable characters are shown by their code."
    )
    return Part("answers", "Sample answers", note, body)


def _sample(answers: Mapping[str, Mapping], most_characters: int) -> Markup:
    problem = next(iter(answers.values()))
    question = tag(
        "div",
        [
            tag("h3", problem["task"]),
            preformatted(shortened(problem["prompt"], most_characters)),
            tag("p", ["Right answer: ", tag("code", shortened(problem["answer"], most_characters))]),
        ],
        class_="question",
    )
    return tag(
        "article",
        [question, tag("div", [_answer(model, record, most_characters) for model, record in answers.items()], class_="answers")],
        class_="sample",
    )


def preformatted(text: str) -> Markup:
    """Text as it is. A browser drops one line break after the opening tag, so one is put there to be dropped."""
    return tag("pre", "\n" + text, tabindex="0")


def _answer(model: str, record: Mapping, most_characters: int) -> Markup:
    verdict, style = ("\u2713 right", "answer right") if record["correct"] else ("\u2717 wrong", "answer wrong")
    if not record.get("finished", True):
        verdict += ", cut off"
    text = record["completion"]
    if text.strip():
        shown = preformatted(shortened(text, most_characters))
    else:
        shown = tag("p", f"({len(text):,} characters, all of them spaces or line breaks)" if text else "(empty answer)")
    return tag("div", [tag("h4", [model, " ", tag("span", verdict)]), shown], class_=style)
