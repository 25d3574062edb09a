"""Tiny finished outputs of every stage, as the report finds them: the same files and keys, made-up numbers."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

TASKS = ("addition", "comparison", "counting", "reversal", "word_problems")
SKILL = {"base": 0.03, "sft": 0.42, "rl": 0.63, "bf16": 0.63, "int8": 0.62}
PARAMS = {
    "shared": {"profile": "toy", "seed": 17},
    "pretrain": {"model": {"num_layers": 2, "hidden_size": 64}, "peak_lr": 0.003, "total_tokens": 40000},
    "sft": {"method": "full", "steps": 60, "peak_lr": 0.001},
    "rl": {"loss": "grpo", "steps": 30, "lr": 0.0003, "clip": [0.2, 0.28]},
}


def make_outputs(root: Path, problems: int = 80) -> dict[str, Path]:
    """Dependency name -> finished folder, in the order in which dvc.yaml declares them."""
    folders = {name: root / name for name in ("prepare", "tokenize", "pretrain", "sft", "rl", "export/bf16", "export/int8")}
    folders |= {f"evaluate/{model}": root / "evaluate" / model for model in SKILL}
    for folder in folders.values():
        folder.mkdir(parents=True)
    write_json(folders["prepare"] / "report.json", prepare_report())
    write_json(folders["tokenize"] / "report.json", tokenize_report())
    for stage in ("pretrain", "sft", "rl"):
        (folders[stage] / "model").mkdir()
        save_file(
            {"model.embed_tokens.weight": np.zeros((300, 64), np.float32), "model.norm.weight": np.zeros(64, np.float32)},
            folders[stage] / "model" / "model.safetensors",
        )
    write_curves(folders)
    write_json(folders["export/bf16"] / "fidelity.json", fidelity("bf16", 2_300_000, 16.02, 1.3e-5, 0.9981))
    write_json(folders["export/int8"] / "fidelity.json", fidelity("int8", 1_290_000, 8.98, 2.1e-3, 0.9713))
    for model, skill in SKILL.items():
        write_evaluation(folders[f"evaluate/{model}"], model, skill, problems)
    for name, folder in folders.items():
        seal(folder, name)
    return folders


def seal(folder: Path, name: str) -> None:
    """Write the manifest that the runner writes on publication."""
    (folder / "manifest.json").unlink(missing_ok=True)
    files = {
        file.relative_to(folder).as_posix(): {"bytes": file.stat().st_size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    stage = name.split("/")[0]
    write_json(
        folder / "manifest.json",
        {
            "stage": name.replace("/", "@"),
            "params": {key: value for key, value in PARAMS.items() if key in ("shared", stage)},
            "files": files,
        },
    )


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def prepare_report() -> dict:
    """One source that drops, one that is short of its share."""

    def source(records: int, kept: int, share: float, asked: float, missing: int, **dropped: int) -> dict:
        reasons = {"empty": 0, "undecodable": 0, "contaminated": 0, "duplicate": 0, "over_budget": 0} | dropped
        return {
            "records": records,
            "kept": kept,
            "dropped": reasons,
            "kept_bytes": kept * 900,
            "tokens": kept * 225,
            "asked_tokens": kept * 225 + missing,
            "missing_tokens": missing,
            "share": share,
            "asked_share": asked,
        }

    drawn = {
        split: {"draws": kept + repeats, "kept": kept, "dropped": {"repeat": repeats}}
        for split, kept, repeats in (("train", 2000, 41), ("val", 200, 3), ("test", 200, 0))
    }
    return {
        "text": {
            "sources": {
                "stdlib": source(5231, 4410, 0.62, 0.6, 0, empty=12, undecodable=2, duplicate=307, over_budget=500),
                "problems": source(9000, 8988, 0.31, 0.3, 0, contaminated=12),
                "notes": source(120, 118, 0.07, 0.1, 12400, duplicate=2),
            }
        },
        "chat": drawn,
        "problems": drawn,
        "overlap": {"documents": 13516, "questions": 4800, "shared": 0},
        "interpreter": {"implementation": "CPython", "python": "3.11.7", "files": 390, "stdlib_sha256": "2" * 64},
    }


def varied_prepare_report() -> dict:
    """The same with everything that settings can add: cleaning, near-duplicates, quotes, repeats, phases, sources of records."""
    report = prepare_report()
    texts = report["text"]["sources"]
    texts["web"] = texts.pop("stdlib")
    texts["web"] |= {
        "records": 5336,
        "dropped": texts["web"]["dropped"] | {"contaminated": 9, "near_duplicate": 61, "gopher_word_count": 30, "not valid JSON": 5},
        "changed": {"c4_short_line": 812, "masked_email": 14, "normalised": 33},
        "quotes": [{"id": "a1" * 16, "items": ["problems/test/" + "b2" * 16, "text/val/" + "c3" * 16]}],
        "places": {"not valid JSON": ["data/raw/web/part-0007.jsonl:1204", "data/raw/web/part-0007.jsonl:1205"]},
    }
    texts["notes"] |= {"epochs": 3, "repeated_documents": 236, "repeated_tokens": 53100, "changed": {}, "quotes": []}
    report["text"]["near_duplicates"] = {
        "threshold": 0.8, "ngram": 5, "bands": 16, "rows": 8, "documents": 4783, "groups": 40, "in_groups": 101, "largest_group": 9,
    }  # fmt: skip
    report["text"]["phases"] = [
        {"name": name, "asked_tokens": asked, "tokens": asked - 300, "sources": {source: phase_share(*shares) for source, shares in mixture.items()}}
        for name, asked, mixture in (
            ("general", 2_400_000, {"web": (0.701, 0.7), "problems": (0.229, 0.2), "notes": (0.07, 0.1)}),
            ("reasoning", 800_000, {"web": (0.0, 0.0), "problems": (1.0, 1.0), "notes": (0.0, 0.0)}),
        )
    ]
    plain = {"detected_from": None, "licence": None, "revision": None}
    report["sources"] = {
        "web": {"kind": "text", "format": "text", "detected_from": 20, "licence": "ODC-BY", "revision": "4f2a9c81d07be365"},
        "problems": {"kind": "text", "format": "text", **plain},
        "notes": {"kind": "text", "format": "text", **plain},
        "dialogues": records_of("chat", "sharegpt", 999, {"train": 900, "val": 40, "test": 50}, empty=2, duplicate=3, **{"unknown role": 4})
        | {"licence": "Apache-2.0", "unused_fields": {"id": 999}, "places": {"unknown role": [f"data/raw/d.jsonl:{n}" for n in (7, 31, 32, 90)]}},
        "pairs": records_of("preference", "preference_texts", 300, {"train": 270, "val": 14, "test": 16}),
        "exam": records_of("prompts", "gsm8k", 1319, {"train": 0, "val": 0, "test": 1300}, over_cap=12, contaminated=7) | {"revision": "3101c7d5072418e2" * 2},
    }
    return report


def phase_share(share: float, asked: float) -> dict:
    return {"documents": round(9000 * share), "repeated_documents": 0, "tokens": round(share * 1e6), "share": share, "asked_share": asked}


def records_of(kind: str, form: str, records: int, splits: dict[str, int], **dropped: int) -> dict:
    reasons = {"empty": 0, "undecodable": 0, "duplicate": 0, "contaminated": 0, "over_cap": 0} | dropped
    return {
        "kind": kind,
        "format": form,
        "detected_from": 20,
        "licence": None,
        "revision": None,
        "records": records,
        "kept": sum(splits.values()),
        "dropped": reasons,
        "splits": splits,
        "unused_fields": {},
        "places": {},
    }


def tokenize_report() -> dict:
    def split(rows: int, each: float, supervised: float, longest: int) -> dict:
        tokens = round(rows * each)
        return {
            "rows": rows,
            "tokens": tokens,
            "bytes": tokens * 3,
            "supervised_tokens": round(tokens * supervised),
            "longest_row": longest,
            "tokens_by_source": {},
            "lengths": {str(2**bits - 1): rows // 2 ** abs(bits - 8) for bits in range(4, 1 + longest.bit_length())},
        }

    counts = {"train": 12000, "val": 240, "test": 251}
    return {
        "vocab_size": 4096,
        "dtype": "uint16",
        "unigram_bits_per_byte": {"val": 3.481, "test": 3.517},
        "text": {name: split(rows, 190.4, 0.0, 4411) for name, rows in counts.items()},
        "chat": {name: split(rows // 6, 88.2, 0.61, 240) for name, rows in counts.items()},
        "prompts": {name: split(rows // 6, 31.7, 0.0, 77) for name, rows in counts.items()},
    }


def write_curves(folders: Mapping[str, Path]) -> None:
    noise = random.Random(5)
    wobble = lambda size: noise.uniform(-size, size)  # noqa: E731  (one line of noise, used nine times)
    write_csv(
        folders["pretrain"] / "curve.csv",
        [
            {
                "step": s,
                "loss": 2.1 + 6.2 * math.exp(-s / 60) + wobble(0.12),
                "lr": 0.003,
                "grad_norm": 0.4 + 3 * math.exp(-s / 30) + abs(wobble(0.2)),
            }
            for s in range(1, 401)
        ],
    )
    write_csv(folders["pretrain"] / "val.csv", [{"step": s, "val_bpb": 1.31 + 2.6 * math.exp(-s / 90)} for s in range(50, 401, 50)])
    write_csv(
        folders["sft"] / "curve.csv",
        [{"step": s, "loss": 0.35 + 1.9 * math.exp(-s / 15) + wobble(0.04), "lr": 0.001} for s in range(1, 121)],
    )
    write_csv(folders["sft"] / "val.csv", [{"step": s, "val_loss": 0.39 + 1.9 * math.exp(-s / 15)} for s in range(20, 121, 20)])
    write_csv(
        folders["rl"] / "curve.csv",
        [
            {
                "step": s,
                "reward": 0.62 - 0.22 * math.exp(-s / 20) + wobble(0.03),
                "accuracy": 0.61 - 0.2 * math.exp(-s / 20) + wobble(0.03),
                "entropy": 0.12 + 0.4 * math.exp(-s / 25) + wobble(0.02),
                "kl": 0.0004 * s + abs(wobble(0.002)),
                "length_mean": 22 + 0.06 * s + wobble(1.2),
                "truncated_fraction": 0.1 * math.exp(-s / 12),
                "no_signal_fraction": 0.3 + 0.003 * s + wobble(0.05),
            }
            for s in range(1, 61)
        ],
    )
    write_csv(folders["rl"] / "val.csv", [{"step": s, "val_accuracy": 0.63 - 0.21 * math.exp(-s / 20)} for s in range(10, 61, 10)])


def write_csv(path: Path, rows: list[dict[str, float]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def fidelity(name: str, file_bytes: int, bits: float, kl: float, top1: float) -> dict:
    return {
        "format": name,
        "file_bytes": float(file_bytes),
        "bits_per_weight": bits,
        "kl_mean": kl,
        "kl_p99": kl * 21,
        "kl_max": kl * 90,
        "top1_agreement": top1,
        "ppl_ratio": 1 + kl,
        "prob_rms": kl,
        "num_tokens": 8192.0,
    }


def write_evaluation(folder: Path, model: str, skill: float, problems: int) -> None:
    records = [record(model, skill, index) for index in range(problems)]
    (folder / "samples.jsonl").write_text("".join(json.dumps(item, sort_keys=True) + "\n" for item in records), encoding="utf-8")
    write_json(
        folder / "report.json",
        {
            "model": model,
            "text": {"bits_per_byte": 1.3372 + (0.02 if model in ("sft", "rl") else 0.0), "unigram_bits_per_byte": 3.517},
            "problems_too_long": 3,
            "identity": {"evaluation": "e" * 64},
        },
    )


def record(model: str, skill: float, index: int) -> dict:
    """Better models answer a superset of the problems, as they mostly do; the last trained model and its exports differ in a few."""
    task = TASKS[index % len(TASKS)]
    hardness = random.Random(index).random() * (0.7 + 0.15 * (index % len(TASKS)))
    correct = hardness < skill
    a, b = 17 + index, 3 * index + 5
    shown = (
        f"I add the ones, then the tens.\n{a} + {b} = {a + b}\n#### {a + b}" if correct else f"{a} + {b} = {a + b - 10}\n#### {a + b - 10}"
    )
    if model == "base":
        shown = f"{a} + {b} and the return value of the function <b>self.assertEqual(a, b)</b>\n" * 3
    right = 3 if correct else 0
    return {
        "id": f"{index:032x}",
        "task": task,
        "prompt": f"What is {a} plus {b}?",
        "answer": str(a + b),
        "completion": shown,
        "correct": correct,
        "finished": True,
        "answered": model != "base",
        "n": 4,
        "c": right,
        "majority_correct": correct,
    }
