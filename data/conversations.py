"""Chats about problems: what the chat model is fine-tuned on.

In: a ProblemSource and how many chats of which shape. Out: message lists that end with the assistant's worked answer; some open
with a system message, some hold two or three questions in a row. All problems of a chat come from the split the chat is for.
"""

from __future__ import annotations

from random import Random

from data.dedupe import content_id
from data.problems import ProblemSource
from data.tasks import find_task

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a careful assistant. Work step by step and end with #### and the answer.",
    "Answer the question. Put the final answer after ####.",
    "You solve short problems.",
)
_TRIES_PER_CHAT = 20

Chat = dict[str, object]


def build_chats(source: ProblemSource, split: str, count: int, *, system_fraction: float, multi_turn_fraction: float) -> tuple[list[Chat], int]:
    """`count` distinct chats {"id", "source", "messages"} and the number of draws passed over as repeats.

    ValueError when the split's problems do not yield that many distinct chats.
    """
    chats: dict[str, Chat] = {}
    index = 0
    while len(chats) < count:
        if index >= 1000 + _TRIES_PER_CHAT * count:
            raise ValueError(f"only {len(chats):,} distinct {split} chats in {index:,} draws, {count:,} are asked for; lower prepare.num_chats or add tasks")
        rng = Random(f"{source.seed}/chat/{split}/{index}")
        chat = _chat(source, split, index, rng, system=rng.random() < system_fraction, multi_turn=rng.random() < multi_turn_fraction)
        chats.setdefault(chat["id"], chat)
        index += 1
    return list(chats.values()), index - count


def _chat(source: ProblemSource, split: str, index: int, rng: Random, *, system: bool, multi_turn: bool) -> Chat:
    tasks = [source.pick_task(rng) for _ in range(rng.choice((2, 3)) if multi_turn else 1)]
    messages = [{"role": "system", "content": rng.choice(SYSTEM_PROMPTS)}] if system else []
    for turn, task in enumerate(tasks):
        problem = source.draw(f"chat/{turn}", task, index, split)
        messages += [{"role": "user", "content": problem.prompt}, {"role": "assistant", "content": find_task(task).worked_answer(problem)}]
    key = content_id("\0".join(f"{message['role']}\0{message['content']}" for message in messages))
    return {"id": key, "source": "multi_turn" if multi_turn else tasks[0], "messages": messages}
