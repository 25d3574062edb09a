"""stages/reporting/results.py: the verdict follows the test, key figures survive overflows, every task shows every model."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from stages.reporting import comparisons, results
from stages.reporting.inputs import Evaluation, Export
from tests.stages.reporting.test_comparisons import ALL, BASE, SFT

TRAINED = ("base", "sft", "rl")
INT8 = Export("int8", 2048.0, 8.5, 0.001, 0.01, 0.99, 1.0, 100.0)


def evaluation(model: str, bits: float = 1.5) -> Evaluation:
    return Evaluation(model, tuple(ALL.get(model, SFT)), bits, 4.0, 0, "p")


def summary(exports: list[Export], bits: float = 1.5) -> str:
    records = {**ALL, **{export.name: ALL["rl"] for export in exports}}
    pairs = comparisons.neighbours(TRAINED, [export.name for export in exports])
    scores = {model: comparisons.score(model, rows) for model, rows in records.items()}
    evaluations = {model: evaluation(model, bits) for model in records}
    return results.summary(scores, comparisons.changes(records, pairs, 1), evaluations, exports, TRAINED, 12345, 1)


def test_the_verdict_does_not_call_chance_a_gain() -> None:
    html = summary([INT8])
    assert "After rl the model answers <b>65.0\u202f%</b> of 20 held-out problems right, 5.0\u202fpoints more than after sft, " in html
    assert "which these problems cannot tell from chance" in html


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (1.5, "2.50 better than token frequencies alone (4.000)"),
        (4.5, "0.50 worse than token frequencies alone (4.000)"),
        (math.inf, "token frequencies alone need 4.000"),
    ],
)
def test_bits_per_byte_are_set_against_the_baseline(bits: float, words: str) -> None:
    html = summary([INT8], bits)
    assert words in html
    assert ("<b>overflow</b>" in html) is math.isinf(bits)


def test_mlf_03_an_export_of_unknown_size_is_not_the_smallest() -> None:
    assert "<b>2.00\u202fKiB</b>" in summary([replace(INT8, name="broken", file_bytes=math.nan), INT8])
    assert "Smallest export" not in summary([])


def test_every_task_row_shows_every_model_with_its_interval() -> None:
    rows = comparisons.by_task(ALL, "base", "rl")
    body = results.tasks(rows, TRAINED, []).body
    assert body.count('<span class="sub">') == 3
    assert '60.0\u202f%<span class="sub">39 to 78</span>' in body  # Wilson, 12 of 20
    assert "base 0.0\u202f%; sft 60.0\u202f%; rl 65.0\u202f%" in body  # the drawing in words


def test_sampled_answers_that_were_not_drawn_are_not_available() -> None:
    scores = {"base": comparisons.score("base", BASE)}
    body = results.accuracy(scores, [], {"base": evaluation("base")}).body
    assert body.count("not available") == 2  # sampled answers, and whether there was an answer at all
