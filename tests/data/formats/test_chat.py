"""Chats in every shape become the messages that data/chat.py renders, or say why not."""

from __future__ import annotations

import json
from datetime import date

import pytest

from data.chat import render
from data.formats.chat import from_alpaca, from_messages, from_sharegpt, from_worked_answer
from data.formats.misfit import Empty, Misfit

TOOL = {"type": "function", "function": {"name": "legs", "parameters": {"animal": "string"}}}
CALL = '<tool_call>\n{"name": "legs", "arguments": {"animal": "ant"}}\n</tool_call>'


def shown(chat: dict) -> str:
    return "".join(piece.text for piece in render(chat["messages"]))


def test_openai_messages_stay_as_they_are() -> None:
    messages = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user", "assistant")]
    assert from_messages({"messages": messages, "id": 3}) == {"messages": messages}


def test_sharegpt_roles_are_named_anew() -> None:
    turns = [{"from": who, "value": who} for who in ("system", "human", "gpt", "human", "gpt")]
    assert [(m["role"], m["content"]) for m in from_sharegpt({"conversations": turns})["messages"]] == [
        ("system", "system"), ("user", "human"), ("assistant", "gpt"), ("user", "human"), ("assistant", "gpt")]
    assert from_sharegpt({"conversations": turns[1:3], "system": "Be brief."})["messages"][0] == {"role": "system", "content": "Be brief."}


def test_alpaca_joins_instruction_and_input_and_keeps_history() -> None:
    record = {"instruction": "Add.", "input": "1 and 2", "output": "3", "system": "Clerk.", "history": [["Hello", "Hi"]]}
    assert [(m["role"], m["content"]) for m in from_alpaca(record)["messages"]] == [
        ("system", "Clerk."), ("user", "Hello"), ("assistant", "Hi"), ("user", "Add.\n\n1 and 2"), ("assistant", "3")]
    assert from_alpaca({"instruction": "Add.", "input": "", "output": "3"})["messages"][0]["content"] == "Add."
    assert from_alpaca({"instruction": "Add.", "output": "3", "input": None})["messages"][0]["content"] == "Add."


def test_a_worked_answer_is_kept_whole() -> None:
    assert from_worked_answer({"question": "q", "answer": "6*7=<<6*7=42>>42\n#### 42"})["messages"][1]["content"] == "6*7=<<6*7=42>>42\n#### 42"


def test_openai_tools_calls_results_and_reasoning_can_be_rendered() -> None:
    record = {"tools": [TOOL], "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Legs of "}, {"type": "text", "text": "an ant?"}]},
        {"role": "assistant", "content": None, "reasoning_content": "Ask. ", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "legs", "arguments": '{"animal": "ant"}'}}]},
        {"role": "tool", "tool_call_id": "1", "content": "6"},
        {"role": "assistant", "content": "<think>\nSix.\n</think>\n\n6", "tool_calls": None},
    ]}
    messages = from_messages(record)["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert f"<tools>\n{json.dumps(TOOL)}\n</tools>" in messages[0]["content"] and messages[1]["content"] == "Legs of an ant?"
    assert messages[2]["content"] == f"<think>\nAsk.\n</think>\n\n{CALL}"
    text = shown({"messages": messages})
    assert f"<|im_start|>assistant\n<think>\nAsk.\n</think>\n\n{CALL}<|im_end|>" in text and "<tool_response>\n6\n</tool_response>" in text


def test_sharegpt_tools_as_json_text() -> None:
    record = {"tools": json.dumps([TOOL]), "system": "Help.", "conversations": [
        {"from": "human", "value": "Legs of an ant?"}, {"from": "function_call", "value": '{"name": "legs", "arguments": {"animal": "ant"}}'},
        {"from": "observation", "value": "6"}, {"from": "gpt", "value": "6"}]}
    messages = from_sharegpt(record)["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert messages[0]["content"].startswith("Help.\n\nYou may call these tools.") and messages[2]["content"] == CALL
    assert from_sharegpt({"tools": "[]", "conversations": record["conversations"][::3]})["messages"][0]["role"] == "user"


def test_a_table_cell_that_holds_json(tmp_path) -> None:
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "tool_calls": None}]
    assert from_messages({"messages": json.dumps(turns)}) == {"messages": [{"role": t["role"], "content": t["content"]} for t in turns]}


ASK = {"role": "user", "content": "q"}


@pytest.mark.parametrize(("messages", "reason"), [
    ("text", "turns that are not a list"),
    (None, "turns that are not a list"),
    ([ASK, "a"], "a turn that is not an object"),
    ([ASK, {"role": "narrator", "content": "a"}], "unknown role"),
    ([ASK, {"content": "a"}], "unknown role"),
    ([ASK], "no assistant turn"),
    ([{"role": "assistant", "content": "a"}], "no user turn"),
    ([ASK, {"role": "assistant", "content": 3}], "content that is not text"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "content that is not text"),
    ([ASK, {"role": "assistant", "content": "a", "weight": 0}], "a turn with its own loss weight"),
    ([ASK, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}], "tool call arguments that are not JSON"),
    ([ASK, {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {"on": date(2026, 1, 1)}}]}], "a tool that is not JSON"),
    ([ASK, {"role": "assistant", "content": "", "tool_calls": [{}]}], "a tool call without a name"),
    ([ASK, {"role": "assistant", "content": "a", "reasoning": 1}], "reasoning that is not text"),
])
def test_what_cannot_be_rendered_does_not_fit(messages: object, reason: str) -> None:
    with pytest.raises(Misfit) as error:
        from_messages({"messages": messages})
    assert error.value.fault.reason == reason


@pytest.mark.parametrize("record", [{"instruction": 1, "output": "a"}, {"instruction": "a"}, {"instruction": "a", "output": "b", "history": ["x"]}])
def test_alpaca_misfits(record: dict) -> None:
    with pytest.raises(Misfit):
        from_alpaca(record)


def test_data01_what_says_nothing_is_empty() -> None:
    for messages in ([], [{"role": "user", "content": " "}, {"role": "assistant", "content": "a"}], [ASK, {"role": "assistant", "content": " \n"}], [ASK, {"role": "assistant", "content": None}]):
        with pytest.raises(Empty):
            from_messages({"messages": messages})
    with pytest.raises(Empty):
        from_alpaca({"instruction": "", "input": "", "output": "x"})
