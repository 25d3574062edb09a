"""Chat records -> {"messages": [...]}, as data/chat.py renders them.

OpenAI `messages`, ShareGPT `conversations`, Alpaca `instruction / input / output` (+ `system`, `history`), and GSM8K's worked answers.
"""

from __future__ import annotations

from data.formats.conversation import Message, as_list, check_chat, to_messages
from data.formats.misfit import Misfit, optional_text, text_field

Chat = dict[str, list[Message]]


def from_messages(record: dict) -> Chat:
    """{"messages": [{"role", "content"}], "tools"?}."""
    return _chat(to_messages(record.get("messages"), record.get("tools")))


def from_sharegpt(record: dict) -> Chat:
    """{"conversations": [{"from", "value"}], "system"?, "tools"?}."""
    return _chat(to_messages(record.get("conversations"), record.get("tools"), optional_text(record, "system")))


def from_alpaca(record: dict) -> Chat:
    """{"instruction", "input"?, "output", "system"?, "history"?}: the input follows the instruction after a blank line."""
    turns: list[Message] = []
    for pair in as_list(record.get("history") or [], "history"):
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise Misfit("history that is not pairs of texts")
        turns += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    turns += [{"role": "user", "content": alpaca_question(record)}, {"role": "assistant", "content": text_field(record, "output")}]
    return _chat(to_messages(turns, record.get("tools"), optional_text(record, "system")))


def from_worked_answer(record: dict) -> Chat:
    """{"question", "answer"}: the question, and the answer as it stands, its working and mark included."""
    return _chat([{"role": "user", "content": text_field(record, "question")}, {"role": "assistant", "content": text_field(record, "answer")}])


def alpaca_question(record: dict) -> str:
    """Instruction and input as one message."""
    instruction, further = text_field(record, "instruction"), optional_text(record, "input")
    return f"{instruction}\n\n{further}" if instruction.strip() and further.strip() else instruction if instruction.strip() else further


def _chat(messages: list[Message]) -> Chat:
    check_chat(messages)
    return {"messages": messages}
