"""export: the RL model -> a Hugging Face folder in one format ("bf16" or "int8"), proven to load elsewhere before it is published.

Output: config.json, generation_config.json (greedy, stops at end of turn), model.safetensors, tokenizer files with the chat
template, fidelity.json. Each check fails the stage: stored weights are bit for bit the format's rounding of the model; a fresh
process with plain transformers finds nothing missing or unexpected, gives our logits, stops at every end token, and encodes texts and
the golden conversation as in training; divergence from the float32 model on held-out tokens stays within the gates.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from pydantic import Field
from transformers import PreTrainedTokenizerFast

from data.chat import check_golden
from data.packing import eval_rows
from data.shards import MdsFolder, open_mds
from data.tokenizer import END_OF_TEXT, TURN_END, check_fingerprint, control_ids, fingerprint, load_tokenizer
from models import checkpoint
from models.architectures.decoder import Decoder
from models.evaluation.metrics import FidelityMeter
from models.quantization import folder as exported
from stages.atomic import write_json
from stages.config import Section, StageError
from stages.context import Context
from stages.exporting.checks import Expectation, check_reload, check_weights
from stages.runner import main

CHECK_DOCUMENTS, CHECK_TOKENS = 3, 96
"""Held-out documents, and chats, whose logits the fresh process must reproduce, and how much of each."""


class Format(Section):
    """What one format may cost."""

    max_logit_difference: float = Field(gt=0)
    """Largest allowed difference of a logit between the fresh process and our loader, both in float32 on the stored weights."""
    max_kl: float = Field(gt=0)
    """Gate: mean KL(model || export) per held-out token, in nats."""
    min_top1: float = Field(ge=0, le=1)
    """Gate: share of held-out tokens whose likeliest prediction is unchanged."""


class Config(Section):
    """Settings of the export, one section for all formats."""

    bf16: Format
    int8: Format
    fidelity_tokens: int = Field(ge=2)
    """Held-out token positions (half documents, half chats) on which the export is compared with the model."""
    fidelity_seq_len: int = Field(ge=8)
    """Row length of that comparison; the model's context where that is shorter."""
    fidelity_batch_rows: int = Field(ge=1)
    """Rows per forward pass: bounds memory; moves results by rounding only."""


def plan(cfg: Config, ctx: Context) -> dict[str, object]:
    """Facts for the dry run."""
    return {"format": ctx.item, **format_settings(cfg, ctx.item).model_dump(), "fidelity_tokens": cfg.fidelity_tokens}


def run(cfg: Config, ctx: Context) -> dict[str, float]:
    """Export, check, measure. RuntimeError when a check or a gate fails."""
    settings = format_settings(cfg, ctx.item)
    source, tokens = ctx.dep("rl"), ctx.dep("tokenize")
    golden = json.loads((tokens / "golden.json").read_text(encoding="utf-8"))
    tokenizer = tokenizer_of_training(source / "tokenizer", tokens / "tokenizer", golden)
    ids = control_ids(tokenizer)
    end_ids = [ids[TURN_END], ids[END_OF_TEXT]]
    model = checkpoint.load_model(source / "model")[0].float()
    exported.WRITERS[ctx.item](model, ctx.out, source / "tokenizer", end_ids, ids[END_OF_TEXT])
    loaded = exported.load(ctx.out)
    check_weights(loaded.state_dict(), exported.stored_values(model, ctx.item))
    held_out = [open_mds(tokens / kind / "val") for kind in ("text", "chat")]
    rows = [row[: model.config.max_seq_len] for row in [golden["ids"], *check_rows(held_out)]]
    expectation = Expectation(model=loaded, tokenizer=tokenizer, golden=golden, end_ids=end_ids, rows=rows, tolerance=settings.max_logit_difference)
    checks = check_reload(ctx, ctx.out, expectation)
    ctx.note("a fresh process with plain transformers loads the folder and agrees")
    fidelity = measure(ctx, cfg, model, loaded, held_out)
    file_bytes = (ctx.out / exported.WEIGHTS).stat().st_size
    bits = 8 * file_bytes / sum(parameter.numel() for parameter in model.parameters())
    metrics = {**fidelity, "file_bytes": float(file_bytes), "bits_per_weight": bits}
    check_gates(ctx.item, settings, metrics)
    write_json(ctx.out / "fidelity.json", {"format": ctx.item, "gates": settings.model_dump(), "reload": checks, **metrics})
    return metrics


def format_settings(cfg: Config, item: str | None) -> Format:
    """The settings of a format; StageError lists the formats when there is no such one."""
    settings = {"bf16": cfg.bf16, "int8": cfg.int8}
    if item not in settings:
        raise StageError(f"export got item {item!r}; expected one of {', '.join(settings)}: give it with --item")
    return settings[item]


def tokenizer_of_training(folder: Path, trained: Path, golden: dict) -> PreTrainedTokenizerFast:
    """The model's tokenizer; ValueError unless it is the one the tokens were made with, template included (SFT-04)."""
    check_fingerprint(folder, fingerprint(trained))
    tokenizer = load_tokenizer(folder)
    check_golden(tokenizer, golden)
    return tokenizer


def check_rows(held_out: list[MdsFolder]) -> list[list[int]]:
    """The beginnings of a few held-out documents and chats."""
    return [dataset[i]["tokens"][:CHECK_TOKENS].astype(int).tolist() for dataset in held_out for i in range(min(CHECK_DOCUMENTS, len(dataset)))]


@torch.inference_mode()
def measure(ctx: Context, cfg: Config, model: Decoder, loaded: Decoder, held_out: list[MdsFolder]) -> dict[str, float]:
    """Divergence of the export from the float32 model on held-out documents and on the supervised tokens of held-out chats."""
    seq_len = min(cfg.fidelity_seq_len, model.config.max_seq_len)
    max_rows = max(1, cfg.fidelity_tokens // (2 * seq_len))
    batches = [eval_rows(dataset, seq_len, max_rows=max_rows).batch for dataset in held_out]
    progress = ctx.progress(sum(batch.tokens_BT.size for batch in batches), "tokens", "fidelity")
    meter = FidelityMeter()
    for batch in batches:
        for start in range(0, len(batch.tokens_BT), cfg.fidelity_batch_rows):
            part = batch.rows(start, start + cfg.fidelity_batch_rows)
            inputs = [torch.from_numpy(array) for array in (part.tokens_BT, part.positions_BT, part.segments_BT)]
            meter.update(model(*inputs), loaded(*inputs), torch.from_numpy(part.targets_BT))
            progress.advance(part.tokens_BT.size)
    return meter.result()


def check_gates(item: str, settings: Format, metrics: dict[str, float]) -> None:
    """RuntimeError when the export strays too far from the model; NaN counts as too far."""
    faults = []
    if not metrics["kl_mean"] <= settings.max_kl:
        faults.append(f"mean KL is {metrics['kl_mean']:.3g} nats per token, export.{item}.max_kl allows {settings.max_kl:g}")
    if not metrics["top1_agreement"] >= settings.min_top1:
        faults.append(f"top-1 agreement is {metrics['top1_agreement']:.4f}, export.{item}.min_top1 asks for {settings.min_top1:g}")
    if faults:
        raise RuntimeError(f"the {item} export is too far from the model, so it is not published: {'; '.join(faults)}; "
                           "use a finer format, or loosen the gate knowingly")  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main("export", Config, run, plan))
