"""Greedy batched generation: models/inference/generate.py against transformers' `generate` on the same weights.

`python -m tests.bench.generate [--quick]`. A randomly initialised decoder of the nano profile's shape is written as a Hugging
Face folder and loaded back by transformers; both then answer the same prompts of unequal length in batches of the same size, in
turn (ours, peer, ours, peer, ...), and must give the same token ids up to each row's end token. Prints one JSON line last:
ratio is the median of ours / peer in generated tokens per second (above 1: ours is faster).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from models.architectures.decoder import Decoder, DecoderConfig, init_weights
from models.inference.generate import generate
from models.interop import to_hf_folder

SHAPE = DecoderConfig(
    vocab_size=2048, num_layers=4, hidden_size=128, intermediate_size=384, num_heads=4, num_kv_heads=2, head_dim=32,
    max_seq_len=256, rope_base=10000.0, norm_eps=1e-6, tied_head=True, qk_norm=True, qkv_bias=False,
)  # fmt: skip
PAD_ID = 0
EOS_IDS = list(range(1, 61))
"""About 3 % of the vocabulary ends a row, so that rows of a random model end at scattered places, as answers do."""


@dataclass(frozen=True, slots=True)
class Work:
    """What both sides are asked to do."""

    prompts: list[list[int]]
    batch_size: int
    max_new_tokens: int
    rounds: int


def workload(quick: bool) -> Work:
    """Prompts of 15 to 55 ids, as the procedural problems have."""
    source = random.Random(0)
    prompts = [[source.randrange(len(EOS_IDS) + 1, SHAPE.vocab_size) for _ in range(source.randint(15, 55))] for _ in range(128 if quick else 512)]
    return Work(prompts=prompts, batch_size=128, max_new_tokens=32 if quick else 64, rounds=3 if quick else 5)


def make_model() -> Decoder:
    """Random weights with a scale at which greedy continuations wander instead of repeating one token."""
    model = Decoder(SHAPE)
    init_weights(model, 0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.mul_(8.0 if "embed" in name else 10.0)
    return model.eval()


def ours(model: Decoder, work: Work) -> list[list[int]]:
    """Generated ids of every prompt."""
    groups = generate(
        model, work.prompts, max_new_tokens=work.max_new_tokens, temperature=0.0, eos_ids=EOS_IDS, seed=0, batch_size=work.batch_size
    )
    return [group[0].tokens for group in groups]


@torch.inference_mode()
def peer(model: transformers.PreTrainedModel, work: Work) -> list[list[int]]:
    """The same by transformers: left-padded batches of prompts of similar length, cut after each row's first end token."""
    order = sorted(range(len(work.prompts)), key=lambda i: len(work.prompts[i]))
    answers: list[list[int]] = [[] for _ in work.prompts]
    for start in range(0, len(order), work.batch_size):
        chunk = order[start : start + work.batch_size]
        width = max(len(work.prompts[i]) for i in chunk)
        rows = torch.tensor([[PAD_ID] * (width - len(work.prompts[i])) + work.prompts[i] for i in chunk])
        mask = torch.tensor([[0] * (width - len(work.prompts[i])) + [1] * len(work.prompts[i]) for i in chunk])
        made = model.generate(
            input_ids=rows, attention_mask=mask, do_sample=False, max_new_tokens=work.max_new_tokens, eos_token_id=EOS_IDS, pad_token_id=PAD_ID
        )
        for i, row in zip(chunk, made[:, width:].tolist(), strict=True):
            ends = [place for place, token in enumerate(row) if token in EOS_IDS]
            answers[i] = row[: ends[0] + 1] if ends else row
    return answers


def tokens_per_second(answer_fn: Callable[[], list[list[int]]]) -> tuple[float, list[list[int]]]:
    """Speed of one pass, and what it made."""
    started = time.perf_counter()
    answers = answer_fn()
    return sum(map(len, answers)) / (time.perf_counter() - started), answers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a size that ends within a minute on two cores")
    work = workload(parser.parse_args().quick)
    model = make_model()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        to_hf_folder(model, folder, None, torch.float32, eos_ids=EOS_IDS, pad_id=PAD_ID)
        other = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    pairs = []
    ours(model, work), peer(other, work)
    for _ in range(work.rounds):
        (our_speed, our_answers), (peer_speed, peer_answers) = (
            tokens_per_second(lambda: ours(model, work)), tokens_per_second(lambda: peer(other, work))
        )  # fmt: skip
        if our_answers != peer_answers:
            different = sum(a != b for a, b in zip(our_answers, peer_answers, strict=True))
            sys.stderr.write(f"error: {different} of {len(our_answers)} rows differ between the two sides, so their speeds do not compare\n")
            return 1
        pairs.append((our_speed, peer_speed))
    lengths = list(map(len, our_answers))
    ratios = [a / b for a, b in pairs]
    result = {
        "bench": "generate", "ratio": round(statistics.median(ratios), 3), "ratios": [round(ratio, 3) for ratio in ratios],
        "ours": round(statistics.median(a for a, _ in pairs), 1), "peer": round(statistics.median(b for _, b in pairs), 1),
        "unit": "generated tokens per second", "threads": torch.get_num_threads(), "transformers": transformers.__version__,
        "work": {"prompts": len(work.prompts), "batch_size": work.batch_size, "max_new_tokens": work.max_new_tokens,
                 "generated_tokens": sum(lengths), "rows_unfinished": sum(n == work.max_new_tokens for n in lengths)},
    }  # fmt: skip
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
