"""Conversations to token ids and a supervision mask, from structure.

In: messages [{"role": "system"|"user"|"assistant"|"tool", "content": str}, ...]. Out: ids, and per token whether it is
supervised. `render` lays a conversation out as pieces (control tokens and text); the ids of the pieces, one after the other, are
the ids of the conversation, and the mask follows from which piece a token came from, never from searching for an answer's text.
CHAT_TEMPLATE is the same layout for other engines: without control tokens spelled in the content, tokenizer.apply_chat_template
gives the same ids.

Layout: ChatML, `<|im_start|>role\\ncontent<|im_end|>\\n` for each turn; no default system prompt, no start token. Tool results
stand in a user turn between <tool_response> tags. Assistant content is stripped of surrounding white space, so that its first
token never merges with the newline before it and training, rollout and evaluation see the same ids.

Reasoning, as in Qwen3 (arXiv 2505.09388, section 4.3), with one difference, stated last:
- an assistant message that begins with <think>...</think> has a reasoning block; its two tags are control tokens. The same tags
  anywhere else are ordinary text;
- the block is kept in turns after the last user message and dropped from earlier ones;
- enable_thinking=False ends the generation prompt with an empty block (hard switch: the model must not reason);
- the block is written exactly where a message has one. Qwen3 puts an empty one into every final answer without; we do not, so a
  model that has never seen reasoning is prompted as it was trained.

Supervised: assistant content, a non-empty reasoning block with its tags, and the <|im_end|> that ends the turn. Not supervised:
role headers, the newline after a turn, an empty reasoning block, and everything said by system, user or tool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from data.tokenizer import CONTROL_TOKENS, THINK_END, THINK_START, TURN_END, TURN_START, ChatTokenizer, control_ids, plain_encoder

Message = Mapping[str, str]
ROLES = ("system", "user", "assistant", "tool")

CHAT_TEMPLATE = """\
{%- if tools %}{{- raise_exception('this template defines no tools: describe them in the system message') }}{%- endif %}
{%- set ns = namespace(last_query=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set ns.last_query = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set answer = message.content | trim %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if answer.startswith('<think>') and '</think>' in answer %}
            {%- set body = answer.split('<think>')[1:] | join('<think>') %}
            {%- set reasoning = body.split('</think>')[0] | trim %}
            {%- set answer = body.split('</think>')[1:] | join('</think>') | trim %}
            {%- if loop.index0 > ns.last_query %}
                {{- '<think>\\n' + reasoning + '\\n</think>\\n\\n' }}
            {%- endif %}
            {{- answer }}
        {%- else %}
            {{- answer }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- elif message.role == 'system' or message.role == 'user' %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- else %}
        {{- raise_exception('unknown role: ' + message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

GOLDEN_MESSAGES: tuple[dict[str, str], ...] = (
    {"role": "system", "content": "You are a careful clerk."},
    {"role": "user", "content": "How many legs have 3 spiders?"},
    {"role": "assistant", "content": "<think>\n3 * 8 = 24\n</think>\n\nThey have 24.\n#### 24"},
    {"role": "user", "content": "And 2 ants? Say yes if you know: yes"},
    {"role": "tool", "content": "{\"legs_of_ant\": 6}"},
    {"role": "assistant", "content": "<think>\n2 * 6 = 12\n</think>\n\nyes\n#### 12"},
)
"""Covers every rule of the layout. Its ids are kept as golden.json, to be compared wherever a tokenizer is loaded again."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a rendered conversation: one control token, or text that is encoded in one go.

    The first `header` characters of a supervised text are template furniture. They end in a newline and what follows does not
    begin with white space, so no token spans the two.
    """

    text: str
    control: bool = False
    supervised: bool = False
    header: int = 0


@dataclass(frozen=True, slots=True)
class EncodedChat:
    """Token ids of a conversation, and for each whether the loss counts when it is the target (1) or not (0)."""

    ids: list[int]
    mask: list[int]


def render(messages: Sequence[Message], *, generation_prompt: bool = False, enable_thinking: bool | None = None) -> list[Piece]:
    """Lay out a conversation. Joining the pieces' texts gives what CHAT_TEMPLATE renders. ValueError for a malformed message."""
    _check_messages(messages)
    last_query = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)
    pieces: list[Piece] = []
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            pieces += _assistant_turn(message["content"], keep_reasoning=i > last_query)
        elif message["role"] != "tool":
            pieces += _plain_turn(f"{message['role']}\n{message['content']}")
        elif i == 0 or messages[i - 1]["role"] != "tool":
            pieces += _plain_turn("user" + "".join(f"\n<tool_response>\n{result}\n</tool_response>" for result in _tool_run(messages, i)))
    if generation_prompt:
        pieces += [Piece(TURN_START, control=True), Piece("assistant\n")]
        if enable_thinking is False:
            pieces += [Piece(THINK_START, control=True), Piece("\n\n"), Piece(THINK_END, control=True), Piece("\n\n")]
    return pieces


def encode_chats(tokenizer: ChatTokenizer | Tokenizer, chats: Sequence[Sequence[Message]], forced: Counter[int] | None = None) -> list[EncodedChat]:
    """Encode whole conversations; many at a time is faster. `forced`: see PlainEncoder.encode. ValueError for a malformed message."""
    return _encode_pieces(tokenizer, [render(messages) for messages in chats], forced)


def encode_chat(tokenizer: ChatTokenizer, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
    """(ids, mask) of one conversation; both lists have the same length."""
    [chat] = encode_chats(tokenizer, [messages])
    return chat.ids, chat.mask


def encode_prompts(tokenizer: ChatTokenizer | Tokenizer, chats: Sequence[Sequence[Message]], enable_thinking: bool | None = None) -> list[list[int]]:
    """Ids of conversations that wait for an answer, each with the header of the assistant turn to be generated.

    enable_thinking: None and True leave it to the model whether it reasons, False forbids it. ValueError for a conversation that
    ends with an assistant message.
    """
    for messages in chats:
        if messages and messages[-1]["role"] == "assistant":
            raise ValueError("a prompt ends with an assistant message; expected it to end with a system, user or tool message: drop the last one")
    rendered = [render(messages, generation_prompt=True, enable_thinking=enable_thinking) for messages in chats]
    return [chat.ids for chat in _encode_pieces(tokenizer, rendered)]


def encode_prompt(tokenizer: ChatTokenizer, messages: Sequence[Message], enable_thinking: bool | None = None) -> list[int]:
    """encode_prompts for one conversation."""
    return encode_prompts(tokenizer, [messages], enable_thinking)[0]


def spelled_controls(texts: Sequence[str]) -> Counter[str]:
    """How often each control token is spelled out in ordinary text; these stay text when encoded."""
    return Counter({token: count for token in CONTROL_TOKENS if (count := sum(text.count(token) for text in texts))})


def chat_texts(messages: Sequence[Message]) -> list[str]:
    """The text of a conversation that is encoded as ordinary text: its contents without the tags of reasoning blocks."""
    return [piece.text for piece in render(messages) if not piece.control]


def golden_record(tokenizer: ChatTokenizer) -> dict[str, object]:
    """Ids and mask of GOLDEN_MESSAGES, and ids of the prompt before its last answer, ready for JSON."""
    messages = list(GOLDEN_MESSAGES)
    ids, mask = encode_chat(tokenizer, messages)
    return {"messages": messages, "ids": ids, "mask": mask, "prompt_ids": encode_prompt(tokenizer, messages[:-1])}


def check_golden(tokenizer: ChatTokenizer, golden: Mapping[str, object]) -> None:
    """ValueError unless `tokenizer` encodes the golden conversation as recorded, by structure and through its own template."""
    messages = golden["messages"]
    ids, mask = encode_chat(tokenizer, messages)
    found = {"ids": ids, "mask": mask, "prompt_ids": encode_prompt(tokenizer, messages[:-1])}
    differing = [name for name in sorted(found) if found[name] != golden[name]]
    if tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False) != golden["ids"]:
        differing.append("ids through the chat template")
    if differing:
        raise ValueError(
            f"the golden conversation has other {', '.join(differing)} than recorded: the tokenizer or its template was changed; "
            "restore the folder that the tokenize stage wrote"
        )


def _check_messages(messages: Sequence[Message]) -> None:
    if not messages:
        raise ValueError("a conversation has no messages; expected at least one")
    for i, message in enumerate(messages):
        if set(message) != {"role", "content"}:
            raise ValueError(f"message {i} has the keys {sorted(message)}; expected exactly 'role' and 'content'")
        if message["role"] not in ROLES:
            raise ValueError(f"message {i} has role {message['role']!r}; expected one of {', '.join(ROLES)}")
        if not isinstance(message["content"], str):
            raise ValueError(f"message {i} has content of type {type(message['content']).__name__}; expected str")


def _tool_run(messages: Sequence[Message], start: int) -> list[str]:
    """Contents of the tool messages from `start` up to the next message of another role."""
    stop = next((j for j in range(start, len(messages)) if messages[j]["role"] != "tool"), len(messages))
    return [message["content"] for message in messages[start:stop]]


def _plain_turn(text: str) -> list[Piece]:
    return [Piece(TURN_START, control=True), Piece(text), Piece(TURN_END, control=True), Piece("\n")]


def _assistant_turn(content: str, keep_reasoning: bool) -> list[Piece]:
    reasoning, answer = _split_reasoning(content.strip())
    head, end = "assistant\n", [Piece(TURN_END, control=True, supervised=True), Piece("\n")]
    opening = Piece(TURN_START, control=True)
    if reasoning is None or not keep_reasoning:
        return [opening, Piece(head + answer, supervised=True, header=len(head)), *end]
    real = reasoning != ""
    return [
        opening,
        Piece(head),
        Piece(THINK_START, control=True, supervised=real),
        Piece(f"\n{reasoning}\n", supervised=real),
        Piece(THINK_END, control=True, supervised=real),
        Piece(f"\n\n{answer}", supervised=True, header=0 if real else 2),
        *end,
    ]


def _split_reasoning(content: str) -> tuple[str | None, str]:
    """(reasoning or None when there is no block, answer) of stripped assistant content."""
    if not content.startswith(THINK_START) or THINK_END not in content:
        return None, content
    reasoning, answer = content.removeprefix(THINK_START).split(THINK_END, 1)
    return reasoning.strip(), answer.strip()


def _encode_pieces(tokenizer: ChatTokenizer | Tokenizer, chats: Sequence[Sequence[Piece]], forced: Counter[int] | None = None) -> list[EncodedChat]:
    control, encoder = control_ids(tokenizer), plain_encoder(tokenizer)
    headers = sorted({piece.text[: piece.header] for chat in chats for piece in chat if piece.header})
    header_ids = {header: ids.tolist() for header, ids in zip(headers, encoder.encode(headers), strict=True)}
    texts = iter([ids.tolist() for ids in encoder.encode([piece.text for chat in chats for piece in chat if not piece.control], forced)])
    encoded = []
    for chat in chats:
        ids: list[int] = []
        mask: list[int] = []
        for piece in chat:
            new = [control[piece.text]] if piece.control else next(texts)
            furniture = header_ids[piece.text[: piece.header]] if piece.header else []
            if new[: len(furniture)] != furniture:
                raise ValueError(
                    f"a token spans header and content of {piece.text[:40]!r}, so it cannot be masked; "
                    "expected a tokenizer that splits after the header's newline, as SPLIT_PATTERN does"
                )
            ids += new
            mask += [0] * len(furniture) + [int(piece.supervised)] * (len(new) - len(furniture))
        encoded.append(EncodedChat(ids, mask))
    return encoded
