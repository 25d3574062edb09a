"""stages/reporting/samples.py: a choice nobody made by hand; a model's text cannot leave its box."""

from __future__ import annotations

import math

from stages.reporting import samples
from stages.reporting.inputs import Evaluation

RECORDS = tuple(
    {"id": f"{task}-{index}", "task": task, "prompt": "1 + 1 = ?", "answer": "2", "completion": "2", "correct": True, "n": 0, "c": 0}
    for task in ("sums", "sorting", "counting")
    for index in range(5)
)


def evaluation(model: str, **changes: object) -> Evaluation:
    return Evaluation(model, tuple(record | changes for record in RECORDS), math.nan, math.nan, 0, "p")


def test_tasks_take_turns_and_the_choice_depends_on_seed_and_ids_alone() -> None:
    chosen = samples.choose(RECORDS, 6, seed=1)
    assert [problem.split("-")[0] for problem in chosen] == ["counting", "sorting", "sums"] * 2
    assert samples.choose(RECORDS[::-1], 6, seed=1) == chosen
    assert samples.choose(RECORDS, 6, seed=2) != chosen
    assert len(samples.choose(RECORDS, 99, seed=1)) == 15


def test_a_models_text_is_shown_and_cannot_act() -> None:
    attack = "</pre><script>alert(1)</script>\u202e\x1b[2J<img src=x onerror=alert(1)>"
    html = samples.section(
        {"rl": evaluation("rl", completion=attack, prompt=attack, answer=attack, task=attack)}, samples.choose(RECORDS, 1, 0), 500
    ).body
    assert "<script" not in html and "<img" not in html and "\u202e" not in html and "\x1b" not in html
    assert "&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;[U+202E][U+001B][2J" in html


def test_every_model_is_beside_the_others_with_its_verdict_in_words() -> None:
    html = samples.section(
        {"base": evaluation("base", correct=False, completion=""), "rl": evaluation("rl")}, samples.choose(RECORDS, 1, 0), 500
    ).body
    assert html.index("base") < html.index("\u2717 wrong") < html.index("(empty answer)") < html.index("rl") < html.index("\u2713 right")


def test_blank_and_unfinished_answers_are_said_to_be_so() -> None:
    html = samples.section(
        {"rl": evaluation("rl", completion="\n" * 16, finished=False, correct=False)}, samples.choose(RECORDS, 1, 0), 500
    ).body
    assert "(16 characters, all of them spaces or line breaks)" in html and "\u2717 wrong, cut off" in html


def test_leading_line_breaks_survive_the_browser() -> None:
    html = samples.section({"rl": evaluation("rl", completion="\n2")}, samples.choose(RECORDS, 1, 0), 500).body
    assert '<pre tabindex="0">\n\n2</pre>' in html  # the first one is dropped by HTML's rule for pre


def test_a_long_answer_is_cut_and_says_so() -> None:
    html = samples.section({"rl": evaluation("rl", completion="x" * 1500)}, samples.choose(RECORDS, 1, 0), 100).body
    assert "x" * 100 + "\u2026 (1,400 more characters)" in html and "x" * 101 not in html
