"""Turns in any common shape -> the messages that data/chat.py renders.

In: a list of turns, each {role, content} (OpenAI) or {from, value} (ShareGPT), perhaps with tools. Out: [{"role", "content"}] with the
roles system, user, assistant and tool. What the layout has no place for is written out as text the way the layout's readers expect
it: tools in the system message, calls between <tool_call> tags in the assistant's content, reasoning as a <think> block at its
beginning. What cannot be written so (images, a turn to be left out of the loss) makes the record unfit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from data.formats.misfit import Empty, Misfit

Message = dict[str, str]

ROLE_OF = {
    "system": "system", "developer": "system",
    "user": "user", "human": "user",
    "assistant": "assistant", "gpt": "assistant", "model": "assistant", "function_call": "assistant", "tool_call": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool", "function_response": "tool", "tool_response": "tool",
}
_CALLS = ("function_call", "tool_call")
_REASONING = ("reasoning_content", "reasoning", "thinking")
_TOOLS = """You may call these tools. Each line is the JSON description of one:
<tools>
{tools}
</tools>
To call one, write its name and arguments as JSON between tags:
<tool_call>
{{"name": "the tool's name", "arguments": {{}}}}
</tool_call>"""


def to_messages(turns: object, tools: object = None, system: str = "") -> list[Message]:
    """Messages of a conversation. Misfit when it cannot be rendered or nobody asks; Empty when nothing is said."""
    messages = [_message(turn) for turn in as_list(turns, "turns")]
    if not messages:
        raise Empty("no turns")
    if system.strip():
        messages.insert(0, {"role": "system", "content": system})
    return with_tools(messages, tools)


def check_chat(messages: Sequence[Message]) -> None:
    """Misfit unless somebody asks and the assistant answers; Empty when the words are missing."""
    for role in ("user", "assistant"):
        if all(message["role"] != role for message in messages):
            raise Misfit(f"no {role} turn")
    if not any(message["content"].strip() for message in messages if message["role"] == "user"):
        raise Empty("empty question")
    if any(not message["content"].strip() for message in messages if message["role"] == "assistant"):
        raise Empty("empty answer")


def check_prompt(messages: Sequence[Message]) -> None:
    """Misfit unless an answer may follow; Empty when nothing is asked."""
    if not messages or messages[-1]["role"] not in ("user", "tool"):
        raise Misfit("prompt does not end with the user", f"(ends with {messages[-1]['role'] if messages else 'nothing'})")
    if not any(message["content"].strip() for message in messages if message["role"] == "user"):
        raise Empty("empty question")


def as_list(value: object, what: str) -> list:
    """A list, also when it stands as JSON text in a table's cell."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise Misfit(f"{what} that are not a list", f"({error})") from error
    if not isinstance(value, list):
        raise Misfit(f"{what} that are not a list", f"(got {type(value).__name__})")
    return value


def with_tools(messages: list[Message], tools: object) -> list[Message]:
    """Describe the tools at the end of the system message, or in a new one."""
    if tools in (None, "", [], "[]"):
        return messages
    lines = "\n".join(_json(tool) for tool in as_list(tools, "tools"))
    text = _TOOLS.format(tools=lines)
    if messages[0]["role"] == "system":
        return [{"role": "system", "content": f"{messages[0]['content']}\n\n{text}".lstrip()}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _message(turn: object) -> Message:
    if not isinstance(turn, dict):
        raise Misfit("a turn that is not an object", f"(got {type(turn).__name__})")
    name = turn.get("role", turn.get("from"))
    if not isinstance(name, str) or name not in ROLE_OF:
        raise Misfit("unknown role", f"(got {str(name)[:40]!r}, expected one of {', '.join(ROLE_OF)})")
    if turn.get("weight") not in (None, 1, 1.0):
        raise Misfit("a turn with its own loss weight", f"(got {turn['weight']}; every assistant turn counts the same here)")
    content = _content(turn.get("content", turn.get("value")))
    if ROLE_OF[name] == "assistant":
        content = _assistant(turn, f"<tool_call>\n{content.strip()}\n</tool_call>" if name in _CALLS else content)
    return {"role": ROLE_OF[name], "content": content}


def _content(value: object) -> str:
    """Text, or a list of text parts; null is no text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in value):
        return "".join(part["text"] for part in value)
    raise Misfit("content that is not text", f"(got {type(value).__name__})")


def _assistant(turn: dict, content: str) -> str:
    calls = turn.get("tool_calls") or ([turn["function_call"]] if turn.get("function_call") else [])
    text = "\n".join([*([content] if content.strip() else []), *(_call(call) for call in as_list(calls, "tool calls"))]) if calls else content
    reasoning = next((turn[name] for name in _REASONING if turn.get(name)), None)
    if reasoning is None:
        return text
    if not isinstance(reasoning, str):
        raise Misfit("reasoning that is not text", f"(got {type(reasoning).__name__})")
    return f"<think>\n{reasoning.strip()}\n</think>\n\n{text}"


def _call(call: object) -> str:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Misfit("a tool call without a name")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise Misfit("tool call arguments that are not JSON", f"({error})") from error
    return f"<tool_call>\n{_json({'name': function['name'], 'arguments': arguments})}\n</tool_call>"


def _json(value: object) -> str:
    try:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except TypeError as error:  # a table's cell may hold dates or bytes
        raise Misfit("a tool that is not JSON", f"({error})") from error
