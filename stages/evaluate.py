"""evaluate: one model ("base", "sft", "rl", "bf16", "int8") on the held-out text and problems, the same for all of them.

Output: samples.jsonl (one record per problem, by id) and report.json (bits per byte, accuracies with intervals, decoding settings,
stop ids, hashes of what was measured and how). Every accuracy can be recomputed from the records. Decoding is set here and nowhere
else: what an exported folder says in its generation config is not read (EVAL-06).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from pydantic import Field, model_validator
from transformers import PreTrainedTokenizerFast

from data.packing import eval_rows
from data.shards import open_mds, verify_mds
from data.tasks import verify
from data.tokenizer import END_OF_TEXT, TURN_END, check_fingerprint, control_ids, fingerprint, load_tokenizer
from models import checkpoint
from models.architectures.decoder import Decoder
from models.evaluation.metrics import bits_per_byte, token_nll
from models.evaluation.summary import summarise
from models.quantization import folder as exported
from models.storage import sha256_file
from stages.atomic import write_json
from stages.config import Section, StageError
from stages.context import Context
from stages.device import pick_device
from stages.evaluating.answers import Decoding, answer_all, choose_problems
from stages.runner import main

MODELS = {"base": "pretrain", "sft": "sft", "rl": "rl", "bf16": "export/bf16", "int8": "export/int8"}
"""Item -> the output that holds the model."""
MEASURED = ("text/test", "prompts/test")


class Config(Section):
    """Settings of the evaluation, one section for all models."""

    max_problems: int = Field(ge=1)
    """Held-out problems to answer, taken in turn from every task."""
    samples_per_problem: int = Field(ge=0)
    """Sampled answers besides the greedy one; at least the largest of pass_k, better twice that."""
    temperature: float = Field(gt=0)
    """Of the sampled answers."""
    pass_k: list[int]
    """Values of k for pass@k, rising; empty when nothing is sampled."""
    max_new_tokens: int = Field(ge=1)
    """Longest answer; a problem whose prompt leaves less room in the model's context is left out and counted."""
    generation_batch: int = Field(ge=1)
    """Answers under way at once, and problems per resumable part."""
    text_seq_len: int = Field(ge=8)
    """Window for the likelihood of held-out text; the model's context where that is shorter."""
    text_max_rows: int | None = Field(ge=1)
    """Rows of held-out text to score; null for all of it, which is what the unigram baseline is measured on."""
    text_batch_rows: int = Field(ge=1)
    """Rows per forward pass: bounds memory; moves results by rounding only."""

    @model_validator(mode="after")
    def _pass_k_needs_samples(self) -> Config:
        if sorted(set(self.pass_k)) != self.pass_k or any(not 1 <= k <= self.samples_per_problem for k in self.pass_k):
            raise ValueError(f"pass_k={self.pass_k} to rise and to stay within 1..samples_per_problem={self.samples_per_problem}")
        if bool(self.pass_k) != bool(self.samples_per_problem):
            raise ValueError(f"samples_per_problem={self.samples_per_problem} with pass_k={self.pass_k}: both, or 0 and an empty list")
        return self


def plan(cfg: Config, ctx: Context) -> dict[str, object]:
    """Upper bounds for the dry run."""
    answers = cfg.max_problems * (1 + cfg.samples_per_problem)
    return {"model": source_of(ctx.item), "answers": answers, "generated_tokens_at_most": answers * cfg.max_new_tokens}


def run(cfg: Config, ctx: Context) -> dict[str, float]:
    """Score the text, answer the problems, report."""
    source, tokens = ctx.dep(source_of(ctx.item)), ctx.dep("tokenize")
    for name in MEASURED:
        verify_mds(tokens / name)
    model, tokenizer, weights = load(source, tokens / "tokenizer")
    ids = control_ids(tokenizer)
    decoding = Decoding(max_new_tokens=cfg.max_new_tokens, temperature=cfg.temperature, samples_per_problem=cfg.samples_per_problem,
                        end_ids=[ids[TURN_END], ids[END_OF_TEXT]], seed=ctx.seed, batch=cfg.generation_batch)  # fmt: skip
    text = score_text(cfg, ctx, model, tokens)
    problems, too_long = choose_problems(tokens / "prompts" / "test", cfg.max_problems, model.config.max_seq_len - cfg.max_new_tokens)
    records = answer_all(ctx, model, tokenizer, problems, decoding)
    lines = [json.dumps(record, sort_keys=True, ensure_ascii=False) + "\n" for record in records]
    (ctx.out / "samples.jsonl").write_text("".join(lines), encoding="utf-8")
    tasks = summarise(records, cfg.pass_k)
    write_json(ctx.out / "report.json", {
        "model": ctx.item, "weights_sha256": sha256_file(weights), "text": text, "tasks": tasks, "problems_too_long": too_long,
        "unfinished": sum(not record["finished"] for record in records), "unanswered": sum(not record["answered"] for record in records),
        "decoding": decoding_report(decoding), "identity": identity(cfg, decoding, tokens),
    })  # fmt: skip
    return final_metrics(text, tasks)


def source_of(item: str | None) -> str:
    """The upstream output that holds a model; StageError lists the models when there is no such one."""
    if item not in MODELS:
        raise StageError(f"evaluate got item {item!r}; expected one of {', '.join(MODELS)}: give it with --item")
    return MODELS[item]


def load(source: Path, trained_tokenizer: Path) -> tuple[Decoder, PreTrainedTokenizerFast, Path]:
    """(float32 model, tokenizer, weight file) of a training stage's output, or of an exported folder with its weights dequantised.

    ValueError when the tokenizer beside the model is not the one the tokens were made with.
    """
    if (source / "model").is_dir():
        model, folder = checkpoint.load_model(source / "model")[0].float(), source / "tokenizer"
        weights = source / "model" / checkpoint.MODEL_FILE
    else:
        model, folder, weights = exported.load(source), source, source / exported.WEIGHTS
    check_fingerprint(folder, fingerprint(trained_tokenizer))
    return model.to(pick_device()).eval(), load_tokenizer(folder), weights


@torch.inference_mode()
def score_text(cfg: Config, ctx: Context, model: Decoder, tokens: Path) -> dict[str, float]:
    """Bits per byte of the held-out documents beside that of token frequencies alone.

    Each token but a document's first is scored once, within its own document (EVAL-05); the baseline leaves out the same tokens.
    """
    rows = eval_rows(open_mds(tokens / "text" / "test"), min(cfg.text_seq_len, model.config.max_seq_len), max_rows=cfg.text_max_rows)
    device = model.head_weight.device
    progress, nll = ctx.progress(rows.batch.tokens_BT.size, "tokens", "held-out text"), 0.0
    for start in range(0, len(rows.batch.tokens_BT), cfg.text_batch_rows):
        part = rows.batch.rows(start, start + cfg.text_batch_rows)
        arrays = (part.tokens_BT, part.positions_BT, part.segments_BT, part.targets_BT)
        tokens_BT, positions_BT, segments_BT, targets_BT = (torch.from_numpy(array).to(device) for array in arrays)
        nll += float(token_nll(model(tokens_BT, positions_BT, segments_BT), targets_BT).sum())
        progress.advance(part.tokens_BT.size)
    bpb = bits_per_byte(nll, rows.num_bytes)
    unigram = json.loads((tokens / "report.json").read_text(encoding="utf-8"))["unigram_bits_per_byte"]["test"]
    return {
        "bits_per_byte": bpb, "unigram_bits_per_byte": unigram, "bits_per_byte_gain": unigram - bpb, "nll_nats": nll,
        "scored_tokens": rows.batch.num_targets, "bytes": rows.num_bytes, "documents": rows.num_documents,
    }  # fmt: skip


def decoding_report(decoding: Decoding) -> dict[str, object]:
    """How answers were made, in full; there are no stop strings."""
    return {
        "greedy": {"temperature": 0}, "max_new_tokens": decoding.max_new_tokens, "stop_ids": decoding.end_ids, "stop_strings": [],
        "sampled": {"temperature": decoding.temperature, "samples": decoding.samples_per_problem, "seed": decoding.seed},
        "arithmetic": "float32",
    }  # fmt: skip


def identity(cfg: Config, decoding: Decoding, tokens: Path) -> dict[str, str]:
    """Hashes of tokenizer, data and grader, and one over all of that and the settings: only equal ones may be compared."""
    prints = json.loads((tokens / "report.json").read_text(encoding="utf-8"))["fingerprints"]
    parts = {name: prints[name] for name in ("tokenizer", "template", *MEASURED)}
    parts["grader"] = sha256_file(Path(verify.__file__))
    whole = json.dumps([parts, cfg.model_dump(), decoding_report(decoding)], sort_keys=True)
    return {**parts, "evaluation": hashlib.sha256(whole.encode()).hexdigest()}


def final_metrics(text: dict[str, float], tasks: dict[str, dict]) -> dict[str, float]:
    """The scalars that runs are compared by; greedy accuracy also per task."""
    total = tasks["total"]
    shown = [name for name in ("greedy_accuracy", "sampled_accuracy", "majority_accuracy") if name in total]
    shown += [name for name in total if name.startswith("pass_at_")]
    return {
        **{name: text[name] for name in ("bits_per_byte", "unigram_bits_per_byte", "bits_per_byte_gain")},
        **{name: total[name] for name in shown},
        **{f"greedy_accuracy.{task}": block["greedy_accuracy"] for task, block in sorted(tasks.items()) if task != "total"},
    }


if __name__ == "__main__":
    raise SystemExit(main("evaluate", Config, run, plan))
