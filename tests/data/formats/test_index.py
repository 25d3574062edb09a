"""Which format records have."""

from __future__ import annotations

import pytest

from data.formats.index import FORMATS, candidates, detect, rename

TURNS = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
SHAREGPT = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
SHAPES = {
    "messages": ({"messages": TURNS, "id": 1}, "messages", "chat"),
    "messages in a cell": ({"messages": '[{"role": "user"}]'}, "messages", "chat"),
    "messages with a rendered text": ({"messages": TURNS, "text": "<|im_start|>"}, "messages", "chat"),
    "sharegpt": ({"conversations": SHAREGPT, "tools": "[]"}, "sharegpt", "chat"),
    "alpaca": ({"instruction": "i", "input": "", "output": "o"}, "alpaca", "chat"),
    "kto": ({"messages": TURNS, "label": True}, "kto", "preference"),
    "kto texts": ({"prompt": "q", "completion": "a", "label": False}, "kto_texts", "preference"),
    "pairs of texts": ({"prompt": "q", "chosen": "a", "rejected": "b"}, "preference_texts", "preference"),
    "pairs of messages": ({"prompt": "q", "messages": TURNS, "chosen": TURNS, "rejected": TURNS}, "preference_messages", "preference"),
    "pairs of turns": ({"conversations": SHAREGPT[:1], "chosen": SHAREGPT[1], "rejected": SHAREGPT[1]}, "sharegpt_preference", "preference"),
    "gsm8k": ({"question": "q", "answer": "w\n#### 4"}, "gsm8k", "prompts"),
    "prompts": ({"prompt": "q", "answer": 4}, "prompts", "prompts"),
}


@pytest.mark.parametrize(("record", "name", "kind"), SHAPES.values(), ids=SHAPES)
def test_each_shape_is_told(record: dict, name: str, kind: str) -> None:
    form = detect([record] * 3, "auto", "auto")
    assert (form.name, form.kind) == (name, kind)
    assert detect([record], kind, "auto") is form and detect([record], "auto", name) is form


def test_every_format_is_told_from_a_record_of_its_own() -> None:
    told = {(name, kind) for _, name, kind in SHAPES.values()}
    assert {(form.name, form.kind) for form in FORMATS} - told == {("gsm8k", "chat")}
    assert detect([{"question": "q", "answer": "#### 4"}], "chat", "auto").kind == "chat"


def test_text_is_no_format() -> None:
    assert detect([{"text": "a", "url": "b"}, {"text": "c"}], "auto", "auto") is None


def test_a_few_odd_records_do_not_mislead() -> None:
    assert detect([{"instruction": "i", "output": "o"}] * 15 + [{"text": "a"}] * 5, "auto", "auto").name == "alpaca"
    with pytest.raises(ValueError, match="cannot tell the format of records with the fields instruction, output, text"):
        detect([{"instruction": "i", "output": "o"}] * 5 + [{"text": "a"}] * 6 + [{}] * 10, "auto", "auto")


def test_what_cannot_be_told_names_the_fields_and_the_remedy() -> None:
    with pytest.raises(ValueError, match="with the fields body, id; name the text's field .*or `record_format` .one of kto, "):
        detect([{"body": "x", "id": 1}], "auto", "auto")
    with pytest.raises(ValueError, match="cannot tell the format of records with the fields text"):
        detect([{"text": "x"}], "chat", "auto")


def test_names_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="no format 'chatml' of kind auto; expected one of alpaca, gsm8k"):
        candidates("auto", "chatml")
    with pytest.raises(ValueError, match="no format 'alpaca' of kind prompts; expected one of gsm8k, prompts"):
        candidates("prompts", "alpaca")


def test_fields_are_renamed_and_the_named_one_wins() -> None:
    assert rename({"dialog": 1, "id": 2}, {"messages": "dialog"}) == {"messages": 1, "id": 2}
    assert rename({"prompt": "template", "query": "q"}, {"prompt": "query"}) == {"prompt": "q"}
    assert rename({"a": 1, "b": 2}, {"a": "b", "b": "a"}) == {"a": 2, "b": 1}
    assert rename({"a": 1}, {}) == {"a": 1}
