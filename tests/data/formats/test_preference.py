"""Pairs and labels in every shape."""

from __future__ import annotations

import pytest

from data.formats import preference
from data.formats.misfit import Empty, Misfit

PROMPT = [{"role": "user", "content": "q"}]
PAIR = {"prompt_messages": PROMPT, "chosen": "good", "rejected": "bad"}


def answer(text: str) -> list[dict]:
    return [{"role": "assistant", "content": text}]


def test_every_shape_of_pair_gives_the_same_form() -> None:
    assert preference.from_texts({"prompt": "q", "chosen": "good", "rejected": "bad"}) == PAIR
    assert preference.from_texts({"question": "q", "chosen": "good", "rejected": "bad", "system": ""}) == PAIR
    assert preference.from_texts({"instruction": "q", "input": "", "chosen": "good", "rejected": "bad"}) == PAIR
    assert preference.from_message_lists({"prompt": "q", "chosen": answer("good"), "rejected": answer("bad")}) == PAIR
    assert preference.from_message_lists({"prompt": PROMPT, "chosen": answer("good"), "rejected": answer("bad")}) == PAIR
    assert preference.from_message_lists({"chosen": PROMPT + answer("good"), "rejected": PROMPT + answer("bad")}) == PAIR
    assert preference.from_message_lists({"prompt": "q", "chosen": PROMPT + answer("good"), "rejected": PROMPT + answer("bad")}) == PAIR
    turns = [{"from": "human", "value": "q"}]
    assert preference.from_sharegpt({"conversations": turns, "chosen": {"from": "gpt", "value": "good"}, "rejected": {"from": "gpt", "value": "bad"}}) == PAIR
    assert preference.from_sharegpt({"conversations": turns, "chosen": "good", "rejected": "bad"}) == PAIR


def test_labels() -> None:
    judged = {"messages": PROMPT + answer("a"), "label": False}
    assert preference.from_kto({**judged, "id": 1}) == judged
    assert preference.from_kto({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "label": False}) == judged
    assert preference.from_kto_texts({"prompt": "q", "completion": "a", "label": False}) == judged


@pytest.mark.parametrize(("make", "record", "reason"), [
    (preference.from_texts, {"prompt": "q", "chosen": "same", "rejected": "same "}, "chosen and rejected are the same"),
    (preference.from_texts, {"chosen": "a", "rejected": "b"}, "no field 'prompt'"),
    (preference.from_texts, {"prompt": "q", "chosen": "a", "rejected": 3}, "field 'rejected' holds int, expected text"),
    (preference.from_message_lists, {"chosen": PROMPT + answer("a"), "rejected": [{"role": "user", "content": "other"}, *answer("b")]}, "chosen and rejected answer different prompts"),
    (preference.from_message_lists, {"prompt": "q", "chosen": PROMPT, "rejected": PROMPT}, "an answer that is not the assistant's"),
    (preference.from_sharegpt, {"conversations": [{"from": "gpt", "value": "a"}], "chosen": "c", "rejected": "r"}, "prompt does not end with the user"),
    (preference.from_sharegpt, {"conversations": [{"from": "human", "value": "a"}], "chosen": {"from": "human", "value": "c"}, "rejected": "r"}, "an answer that is not the assistant's"),
    (preference.from_kto, {"messages": PROMPT + answer("a"), "label": 1}, "a label that is not true or false"),
    (preference.from_kto, {"messages": PROMPT + answer("a") + PROMPT, "label": True}, "an answer that is not the assistant's"),
    (preference.from_kto, {"messages": PROMPT, "label": True}, "no assistant turn"),
])
def test_misfits(make, record: dict, reason: str) -> None:
    with pytest.raises(Misfit) as error:
        make(record)
    assert error.value.fault.reason == reason


@pytest.mark.parametrize("record", [{"prompt": "q", "chosen": "", "rejected": "b"}, {"prompt": "q", "chosen": "a", "rejected": " "}, {"prompt": "", "chosen": "a", "rejected": "b"}])
def test_data01_what_says_nothing_is_empty(record: dict) -> None:
    with pytest.raises(Empty):
        preference.from_texts(record)
