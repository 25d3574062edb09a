"""A finished tokenize output and models trained "on it" (random weights), small enough to export and evaluate in a second or two."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import torch

from data.tasks import TASKS
from models import checkpoint
from models.architectures.decoder import Decoder, DecoderConfig, init_weights
from stages import tokenize
from stages.context import Context

VOCAB = 330
TASK_NAMES = ("addition", "comparison", "reversal")


def write_jsonl(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def prepare_output(folder: Path) -> Path:
    """Documents, chats and problems in the form of the prepare stage."""
    rng = random.Random(3)
    for split, documents, chats, per_task in (("train", 30, 20, 4), ("val", 8, 8, 2), ("test", 8, 2, 5)):
        words = ["headrace", "mill", "water", "wheel", "naïve", "turns", "12", "flow(x)"]
        texts = [" ".join(rng.choices(words, k=rng.randint(5, 60))) + f". {split} {i}\n" for i in range(documents)]
        write_jsonl(folder / f"text/{split}.jsonl", [{"id": f"{split}{i}", "source": "toy", "text": text} for i, text in enumerate(texts)])
        problems = [(name, TASKS[name].draw(rng)) for name in TASK_NAMES for _ in range(per_task)]
        write_jsonl(folder / f"problems/{split}.jsonl", [
            {"id": f"{split}-{i:03d}", "task": name, "prompt": problem.prompt, "answer": problem.answer} for i, (name, problem) in enumerate(problems)
        ])  # fmt: skip
        drawn = [(name, TASKS[name].draw(rng)) for name in TASK_NAMES for _ in range(chats)]
        write_jsonl(folder / f"chat/{split}.jsonl", [
            {"id": f"{split}{i}", "source": name, "messages": [
                {"role": "user", "content": problem.prompt}, {"role": "assistant", "content": TASKS[name].worked_answer(problem)}]}
            for i, (name, problem) in enumerate(drawn)
        ])  # fmt: skip
    return folder


def tokenize_output(folder: Path) -> Path:
    """The real tokenize stage on `prepare_output`."""
    ctx = Context.for_test(folder, "tokenize", {"prepare": prepare_output(folder / "prepare")})
    tokenize.run(tokenize.Config(vocab_size=VOCAB, min_frequency=2, sample_bytes=1 << 20, shard_size_mb=1, task_size_mb=1, workers=1, executor="processes",
                                     dask_address=None), ctx)  # fmt: skip
    return ctx.out


def toy_config(*, tied_head: bool = True) -> DecoderConfig:
    """Odd widths on purpose: rows that do not fill an int32 word, a head width that is not hidden / heads."""
    return DecoderConfig(
        vocab_size=VOCAB, num_layers=2, hidden_size=30, intermediate_size=46, num_heads=4, num_kv_heads=2, head_dim=10, max_seq_len=160,
        rope_base=10000.0, norm_eps=1e-6, tied_head=tied_head, qk_norm=True, qkv_bias=False,
    )  # fmt: skip


def toy_model(seed: int, *, tied_head: bool = True) -> Decoder:
    """Random weights, spread wide enough for predictions that differ between tokens."""
    model = Decoder(toy_config(tied_head=tied_head))
    init_weights(model, seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(1.0 if name.endswith("norm.weight") else 6.0)
    return model


def training_output(folder: Path, tokens: Path, model: Decoder) -> Path:
    """A model as pretrain, sft and rl leave it: model/ and a copy of tokenizer/."""
    checkpoint.save_model(folder / "model", model, {"stage": "toy"})
    shutil.copytree(tokens / "tokenizer", folder / "tokenizer")
    return folder
