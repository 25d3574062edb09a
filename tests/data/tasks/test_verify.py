"""Answer extraction and checking: hand-worked cases, properties, and every gold answer of GSM8K."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.tasks import TASKS, extract_answer, is_correct, normalise, reward


@pytest.mark.parametrize(("text", "answer"), [
    ("40 + 12 = 52\n#### 52", "52"),
    ("#### 52", "52"),
    ("####52\nQuestion: what is = ?", "52"),
    ("#### 1\n#### 2", "2"),
    ("no marker 52", None),
    ("####   \n", None),
    ("", None),
])
def test_extract_answer(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(("answer", "canonical"), [
    ("52", "52"), (" 052 ", "52"), ("+52", "52"), ("-52", "-52"), ("\u221252", "-52"), ("-0", "0"), ("0.50", "0.5"), (".5", "0.5"), ("5.", "5"),
    ("1,234", "1234"), ("1,234,567.80", "1234567.8"), ("$18", "18"), ("-$18", "-18"), ("12,34", "12 34"), ("3,  7 ,12", "3 7 12"), ("Yes.", "yes"),
    ("", ""), (".", ""), ("a.,", "a"), (" . ", ""), ("5 apples", "5 apples"), ("\u0665", "\u0665"),
])
def test_normalise(answer: str, canonical: str) -> None:
    assert normalise(answer) == canonical


@pytest.mark.parametrize(("completion", "answer", "right"), [
    ("#### 1,234", "1234", True),
    ("#### 1234", "1,234", True),
    ("#### 1 234", "1234", False),
    ("#### 100,200", "100, 200", True),
    ("#### 100, 200", "100,200", True),
    ("#### 200, 100", "100, 200", False),
    ("#### 5 apples", "5", False),
    ("#### 5\nThe answer is 5. #### 6", "5", False),
    ("5", "5", False),
])
def test_is_correct(completion: str, answer: str, right: bool) -> None:
    assert is_correct(completion, answer) is right
    assert reward(completion, answer) == float(right)


def test_a_million_digits_are_checked_not_parsed() -> None:
    assert reward("#### " + "9" * 1_000_000, "9") == 0.0
    assert reward("#### " + "0" * 1_000_000 + "9", "9") == 1.0


@given(st.integers())
def test_any_spelling_of_an_integer_is_right(n: int) -> None:
    for spelling in (str(n), f"{n:,}", f"${n}", f"{n}.0", f" {n}. "):
        assert is_correct(f"anything = Question {n + 1}\n#### {spelling}", str(n))
    assert not is_correct(f"#### {n + 1}", str(n))


@given(st.text())
def test_normalise_is_idempotent_and_no_text_before_the_marker_matters(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)
    assert extract_answer(f"{text}\n#### 7") == "7"


@pytest.mark.parametrize("name", ["train", "test"])
def test_eval07_gold_answers_of_gsm8k_score_100_percent(shared_data: Path, name: str) -> None:
    """EVAL-07: working that holds "=", "Question" or several numbers does not cut the answer."""
    with (shared_data / "gsm8k" / f"{name}.jsonl").open("rb") as lines:
        golds = [json.loads(line)["answer"] for line in lines]
    wrong = [gold for gold in golds if not is_correct(gold, gold.split("####")[1])]
    assert not wrong and len(golds) > 1000
    numbers = [normalise(extract_answer(gold)) for gold in golds]
    assert all(number.lstrip("-").replace(".", "").isdigit() for number in numbers)
    assert not any(TASKS["addition"].verify(gold, str(float(number) + 1)) for gold, number in zip(golds, numbers))
