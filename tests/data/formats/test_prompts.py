"""Prompts whose answers can be checked."""

from __future__ import annotations

import pytest

from data.formats.misfit import Empty, Misfit
from data.formats.prompts import VERIFIERS, from_prompt, from_question


@pytest.mark.parametrize(("worked", "answer"), [("6*7=<<6*7=42>>42\n#### 42", "42"), ("#### 1,234", "1,234"), ("#### -3.50 ", "-3.50"), ("a #### 1\n#### yes", "yes")])
def test_the_gsm8k_form(worked: str, answer: str) -> None:
    made = from_question({"question": "q?", "answer": worked})
    assert made == {"prompt": "q?", "answer": answer, "verifier": "marked_answer"}
    assert VERIFIERS["marked_answer"](worked, answer)


def test_plain_answers_and_numbers() -> None:
    assert from_prompt({"prompt": "q", "answer": " a b ", "level": 3}) == {"prompt": "q", "answer": "a b", "verifier": "marked_answer"}
    assert [from_prompt({"prompt": "q", "answer": number})["answer"] for number in (42, -1, 2.5)] == ["42", "-1", "2.5"]


@pytest.mark.parametrize(("make", "record", "reason"), [
    (from_question, {"question": "q", "answer": "42"}, "no answer after ####"),
    (from_question, {"question": "q", "answer": "42 ####"}, "no answer after ####"),
    (from_question, {"question": 1, "answer": "#### 42"}, "field 'question' holds int, expected text"),
    (from_prompt, {"prompt": "q", "answer": "two\nlines"}, "an answer that its verifier rejects"),
    (from_prompt, {"prompt": "q", "answer": "a", "verifier": "sandbox"}, "unknown verifier"),
    (from_prompt, {"prompt": "q", "answer": True}, "field 'answer' holds bool, expected text"),
    (from_prompt, {"prompt": "q"}, "no field 'answer'"),
])
def test_misfits(make, record: dict, reason: str) -> None:
    with pytest.raises(Misfit) as error:
        make(record)
    assert error.value.fault.reason == reason


@pytest.mark.parametrize("record", [{"prompt": " ", "answer": "a"}, {"prompt": "q", "answer": ""}, {"prompt": "q", "answer": None}])
def test_data01_what_says_nothing_is_empty(record: dict) -> None:
    with pytest.raises(Empty):
        from_prompt(record)
