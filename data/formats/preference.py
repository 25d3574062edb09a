"""Preference records -> {"prompt_messages", "chosen", "rejected"}, or {"messages", "label"} for one answer judged by itself.

Pairs: answers as strings beside a prompt, as message lists, or ShareGPT (`conversations` + `chosen` + `rejected`). Labels: KTO,
`messages` or `prompt` + `completion` with a boolean `label` (Ethayarajh et al. 2024, arXiv 2402.01306).
"""

from __future__ import annotations

from data.formats.chat import alpaca_question
from data.formats.conversation import Message, as_list, check_chat, check_prompt, to_messages
from data.formats.misfit import Empty, Misfit, optional_text, text_field

Preference = dict[str, object]


def from_texts(record: dict) -> Preference:
    """{"prompt" | "question" | "instruction" (+ "input"), "system"?, "chosen", "rejected"}, all text."""
    name = next((name for name in ("prompt", "question", "instruction") if name in record), "prompt")
    question = alpaca_question(record) if name == "instruction" else text_field(record, name)
    prompt = to_messages([{"role": "user", "content": question}], record.get("tools"), optional_text(record, "system"))
    return _pair(prompt, text_field(record, "chosen"), text_field(record, "rejected"))


def from_message_lists(record: dict) -> Preference:
    """{"prompt"?, "chosen": [messages], "rejected": [messages]}: each list the answer alone, or the whole conversation."""
    chosen, rejected = (to_messages(record.get(name)) for name in ("chosen", "rejected"))
    if chosen[:-1] != rejected[:-1]:
        raise Misfit("chosen and rejected answer different prompts")
    prompt = record.get("prompt")
    if len(chosen) > 1:  # the lists begin with the conversation; a prompt beside them repeats its question
        head = chosen[:-1]
    elif isinstance(prompt, list):
        head = to_messages(prompt)
    else:
        head = [{"role": "user", "content": text_field(record, "prompt")}]
    return _pair(to_messages(head, record.get("tools"), optional_text(record, "system")), _answer(chosen[-1]), _answer(rejected[-1]))


def from_sharegpt(record: dict) -> Preference:
    """{"conversations": the prompt, "chosen": a turn or text, "rejected": a turn or text}."""
    prompt = to_messages(record.get("conversations"), record.get("tools"), optional_text(record, "system"))
    chosen, rejected = (_answer_of(record, name) for name in ("chosen", "rejected"))
    return _pair(prompt, chosen, rejected)


def from_kto(record: dict) -> Preference:
    """{"messages" | "conversations", "label": bool}, the last message being what is judged."""
    messages = to_messages(record.get("messages", record.get("conversations")), record.get("tools"), optional_text(record, "system"))
    return _labelled(messages, record)


def from_kto_texts(record: dict) -> Preference:
    """{"prompt", "completion", "label": bool}."""
    turns = [{"role": "user", "content": text_field(record, "prompt")}, {"role": "assistant", "content": text_field(record, "completion")}]
    return _labelled(to_messages(turns, system=optional_text(record, "system")), record)


def _labelled(messages: list[Message], record: dict) -> Preference:
    if not isinstance(record.get("label"), bool):
        raise Misfit("a label that is not true or false", f"(got {record.get('label')!r:.40})")
    check_chat(messages)
    _answer(messages[-1])
    return {"messages": messages, "label": record["label"]}


def _answer_of(record: dict, name: str) -> str:
    value = record.get(name)
    if isinstance(value, str):
        return value
    return _answer(to_messages(as_list([value] if isinstance(value, dict) else value, name))[-1])


def _answer(message: Message) -> str:
    if message["role"] != "assistant":
        raise Misfit("an answer that is not the assistant's", f"(got role {message['role']})")
    return message["content"]


def _pair(prompt: list[Message], chosen: str, rejected: str) -> Preference:
    check_prompt(prompt)
    if not chosen.strip() or not rejected.strip():
        raise Empty("empty answer")
    if chosen.strip() == rejected.strip():
        raise Misfit("chosen and rejected are the same")
    return {"prompt_messages": prompt, "chosen": chosen, "rejected": rejected}
