"""stages/reporting/exports.py: size against quality, the non-inferiority reading, and numbers that overflowed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from stages.reporting import comparisons, exports
from stages.reporting.inputs import Export
from tests.stages.reporting.test_comparisons import records

INT8 = Export("int8", 1.5 * 2**20, 8.98, 0.002, 0.04, 0.97, 1.002, 8192.0)
RL, SAME, WORSE = records("1" * 60 + "0" * 40), records("1" * 60 + "0" * 40), records("1" * 50 + "0" * 50)


def section(export: Export, found: list[dict], margin: float = 0.02) -> str:
    every = {"rl": RL, "int8": found}
    change = comparisons.changes(every, [("rl", "int8")], seed=1)[0]
    return exports.section(
        [export], {model: comparisons.score(model, rows) for model, rows in every.items()}, {"int8": change}, "rl", margin
    ).body


@pytest.mark.parametrize(("found", "margin", "kept"), [(SAME, 0.01, True), (WORSE, 0.02, False), (WORSE, 0.5, True)])
def test_accuracy_is_kept_only_when_the_whole_interval_says_so(found: list[dict], margin: float, kept: bool) -> None:
    change = comparisons.changes({"rl": RL, "int8": found}, [("rl", "int8")], seed=1)[0]
    assert exports.keeps_accuracy(change, margin) is kept
    assert (">yes<" in section(INT8, found, margin)) is kept


def test_flips_count_both_directions() -> None:
    flipped = records("0" * 3 + "1" * 57 + "1" * 2 + "0" * 38)
    assert "5 of 100" in section(INT8, flipped)


def test_mlf_03_an_overflowed_divergence_is_named_and_not_drawn() -> None:
    html = section(replace(INT8, kl_mean=math.inf, ppl_ratio=math.inf, top1=math.nan), SAME)
    assert html.count("overflow") == 2 and "not available" in html
    assert html.count("<svg") == 1  # size and accuracy only


def test_mlf_03_a_perfect_export_has_no_place_on_a_log_axis_and_is_named() -> None:
    assert html_count(section(replace(INT8, kl_mean=0.0), SAME)) == 1


def html_count(html: str) -> int:
    return html.count("<svg")
