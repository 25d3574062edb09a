"""Held-out problems -> answered and judged records, in parts that survive an interruption.

In: a model, its tokenizer, the prompts of the tokenize stage (their stored ids are fed as they are, so no template or start token can
differ between models, EVAL-01). Out: one record per problem. Answers end at an end token or the length limit, never at a string, so
nothing inside a good answer can cut it (EVAL-07).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from data.shards import open_mds
from data.tasks.verify import extract_answer, is_correct, normalise
from models.architectures.decoder import Decoder
from models.evaluation.statistics import majority_index
from models.inference.generate import Completion, generate
from stages.atomic import write_json
from stages.config import StageError
from stages.context import Context, Progress


@dataclass(frozen=True, slots=True)
class Answer:
    """A generated text, without the end token, and whether there was one."""

    text: str
    finished: bool

    def is_right(self, gold: str) -> bool:
        """Finished and right: a text cut at the length limit is no answer, as in the reward of RL."""
        return self.finished and is_correct(self.text, gold)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoding:
    """All that decides an answer besides the model and the prompt."""

    max_new_tokens: int
    temperature: float
    """Of sampled answers; the first answer to each problem is greedy."""
    samples_per_problem: int
    end_ids: list[int]
    seed: int
    batch: int
    """Rows decoded at once, and problems per part."""


def choose_problems(folder: Path, max_problems: int, longest_prompt: int) -> tuple[list[dict], int]:
    """(problems, how many have too long a prompt): tasks take turns, each in stored order, so a short list still has all of them.

    StageError when none is left.
    """
    dataset = open_mds(folder)
    problems = [dataset[i] for i in range(len(dataset))]
    fitting = [problem for problem in problems if len(problem["tokens"]) <= longest_prompt]
    if not fitting:
        raise StageError(f"none of {len(problems)} held-out problems has a prompt of at most {longest_prompt} tokens, the model's context less "
                         "max_new_tokens; lower evaluate.max_new_tokens, or give the prepare stage problems")  # fmt: skip
    turns: dict[str, int] = {}
    order = []
    for index, problem in enumerate(fitting):
        turns[problem["task"]] = turns.get(problem["task"], -1) + 1
        order.append((turns[problem["task"]], problem["task"], index))
    return [fitting[index] for _, _, index in sorted(order)[:max_problems]], len(problems) - len(fitting)


def answer_all(ctx: Context, model: Decoder, tokenizer: PreTrainedTokenizerFast, problems: list[dict], decoding: Decoding) -> list[dict]:
    """Records of all problems, by id. Finished parts wait in the work area, so an interrupted run goes on behind them."""
    progress = ctx.progress(len(problems) * (1 + decoding.samples_per_problem), "answers", "problems")
    by_length = sorted(problems, key=lambda problem: (len(problem["tokens"]), problem["id"]))
    records: list[dict] = []
    num_tokens, started = 0, time.monotonic()
    for part, start in enumerate(range(0, len(by_length), decoding.batch)):
        chunk, file = by_length[start : start + decoding.batch], ctx.work / f"answers-{part:05d}.json"
        if file.is_file():
            records += json.loads(file.read_text(encoding="utf-8"))
            progress.advance(len(chunk) * (1 + decoding.samples_per_problem))
            continue
        made, count = answer_part(model, tokenizer, chunk, decoding, part_seed(decoding.seed, part), progress)
        write_json(file, made)
        records += made
        num_tokens += count
    seconds = max(time.monotonic() - started, 1e-9)
    ctx.volatile(generated_tokens=num_tokens, generation_seconds=seconds, generated_tokens_per_second=num_tokens / seconds)
    return sorted(records, key=lambda record: record["id"])


def part_seed(seed: int, part: int) -> int:
    """Noise is addressed by a problem's place in its part, so each part needs a seed of its own."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{part}".encode()).digest()[:8], "big")


def answer_part(
    model: Decoder, tokenizer: PreTrainedTokenizerFast, chunk: Sequence[dict], decoding: Decoding, seed: int, progress: Progress
) -> tuple[list[dict], int]:
    """Greedy and sampled answers of a few problems: (records, number of generated tokens)."""
    prompts = [problem["tokens"].astype(int).tolist() for problem in chunk]

    def complete(temperature: float, num_samples: int) -> list[list[Completion]]:
        return generate(
            model, prompts, max_new_tokens=decoding.max_new_tokens, temperature=temperature, eos_ids=decoding.end_ids, seed=seed,
            num_samples=num_samples, batch_size=decoding.batch, advance=progress.advance,
        )  # fmt: skip

    greedy = [best for [best] in complete(0.0, 1)]
    sampled = complete(decoding.temperature, decoding.samples_per_problem) if decoding.samples_per_problem else [[] for _ in chunk]
    records = [
        judge(problem, prompt, answer_of(tokenizer, best), [answer_of(tokenizer, other) for other in others])
        for problem, prompt, best, others in zip(chunk, prompts, greedy, sampled, strict=True)
    ]
    return records, sum(len(completion.tokens) for group in ([best, *others] for best, others in zip(greedy, sampled)) for completion in group)


def answer_of(tokenizer: PreTrainedTokenizerFast, completion: Completion) -> Answer:
    """The text without the end token that closes it; other control tokens stay visible."""
    ids = completion.tokens[:-1] if completion.finished else completion.tokens
    return Answer(tokenizer.decode(ids, skip_special_tokens=False), completion.finished)


def judge(problem: dict, prompt_ids: list[int], greedy: Answer, samples: Sequence[Answer]) -> dict:
    """The record of one problem: its identity, the ids that were fed, the greedy answer and its verdict, n samples, c of them right.

    answered: the greedy text has an answer to check. majority_correct: verdict on the most frequent answer of the finished samples.
    """
    gold = problem["answer"]
    given = [extract_answer(sample.text) if sample.finished else None for sample in samples]
    majority = majority_index([None if answer is None else normalise(answer) for answer in given])
    return {
        "id": problem["id"], "task": problem["task"], "prompt": problem["prompt"], "prompt_ids": prompt_ids, "answer": gold,
        "completion": greedy.text, "finished": greedy.finished, "answered": extract_answer(greedy.text) is not None,
        "correct": greedy.is_right(gold), "n": len(samples), "c": sum(sample.is_right(gold) for sample in samples),
        "majority_correct": majority is not None and samples[majority].is_right(gold), "samples": [sample.text for sample in samples],
    }  # fmt: skip
