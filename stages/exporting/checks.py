"""What an exported folder must pass before it is published.

In: the folder, the model as our loader reads it back, the tokenizer it was trained with. Out: a record of what was compared, or a
RuntimeError that names every difference. Two views are compared: ours, and that of a fresh interpreter with plain transformers
(observer.py), which shares no code with this project.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from data.tokenizer import fingerprint, plain_encoder
from models.architectures.decoder import Decoder
from models.storage import read_tensors
from stages.atomic import write_json
from stages.context import Context, Interrupted
from stages.exporting import observer

TEXTS = (
    "naïve café, Zoë's façade: Ångström, ęóąśłżźćń",
    "0 1 12 123 1234567890 3.14159 -42 1,000,000",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 ☕️",
    "a    run  of   spaces\tand\t\ttabs\n\n\nlines\r\n",
    "def f(x):\n    return {k: v[1:-1] for k, v in x.items() if k != 'a_b'}\n",
    "混合 text 中文 и кириллица עברית العربية",
    "\u00a0\u200b\u2028 odd blanks e\u0301 vs \u00e9",
    " leading and trailing ",
    "",
)
"""Strings that tokenizers rebuilt from another format are known to split differently (EXP-05)."""
PROJECT_PACKAGES = ("models", "stages", "data", "flows", "infra")
POLL_SECONDS = 0.2
LOG_LINES = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """What the fresh process must see."""

    model: Decoder
    """The folder as our own loader reads it, float32."""
    tokenizer: PreTrainedTokenizerFast
    """The tokenizer of training."""
    golden: Mapping
    """Recorded encoding of the golden conversation: messages, ids, prompt_ids."""
    end_ids: list[int]
    """Ids that end a generation, the end of turn first."""
    rows: list[list[int]]
    """Token ids whose logits are compared."""
    tolerance: float
    """Largest allowed difference of a logit."""


def check_weights(loaded: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """RuntimeError unless the folder holds exactly the rounding that its format promises, tensor by tensor."""
    wrong = sorted(
        name for name in loaded.keys() | expected.keys()
        if name not in loaded or name not in expected or not torch.equal(loaded[name], expected[name])
    )  # fmt: skip
    if wrong:
        raise RuntimeError(f"exported weights are not the format's rounding of the model in {wrong}; the file was damaged while it was "
                           "written, export again")  # fmt: skip


def check_reload(ctx: Context, folder: Path, expected: Expectation) -> dict[str, object]:
    """Open `folder` in a fresh process and compare; RuntimeError lists all differences. Returns what was checked, for the record."""
    result, logits = reload_in_fresh_process(ctx, folder, expected)
    with torch.inference_mode():
        pairs = zip(expected.rows, logits, strict=True)
        difference = max(float((expected.model(torch.tensor([row]))[0] - theirs).abs().max()) for row, theirs in pairs)
    ctx.volatile(reload_max_logit_difference=difference)
    faults = [f"{kind}: {', '.join(found)}" for kind, found in result["loading"].items() if found]
    if not difference <= expected.tolerance:
        faults.append(f"logits differ by {difference:.2e}, allowed {expected.tolerance:.0e}")
    faults += tokenizer_faults(result, expected) + ending_faults(result, expected.end_ids)
    faults += [f"the fresh process loaded this project's {name}" for name in result["foreign_modules"]]
    if faults:
        raise RuntimeError(f"the exported {ctx.item} folder fails its check in a fresh process, so it is not published: {'; '.join(faults)}")
    return {
        "loader": "transformers", "missing_keys": [], "unexpected_keys": [], "logit_tolerance": expected.tolerance,
        "rows": len(expected.rows), "tokens": sum(map(len, expected.rows)), "texts": len(TEXTS), "end_ids": expected.end_ids,
        "tokenizer": fingerprint(folder),
    }  # fmt: skip


def tokenizer_faults(result: Mapping, expected: Expectation) -> list[str]:
    """Texts and conversations that the reloaded tokenizer encodes otherwise than the tokenizer of training (EXP-05, SFT-04)."""
    trained = [[int(index) for index in ids] for ids in plain_encoder(expected.tokenizer).encode(TEXTS)]
    faults = [f"text {text!r} gives ids {got}, trained with {want}" for text, got, want in zip(TEXTS, result["text_ids"], trained, strict=True) if got != want]
    chats = {"chat_ids": expected.golden["ids"], "prompt_ids": expected.golden["prompt_ids"]}
    return faults + [f"the golden conversation has other {name} than recorded" for name, want in chats.items() if result[name] != want]


def ending_faults(result: Mapping, end_ids: Sequence[int]) -> list[str]:
    """Places that name another end token, end tokens that do not stop a generation, sampling by default (EXP-04)."""
    wanted = {"config.json": list(end_ids), "generation_config.json": list(end_ids), "tokenizer": end_ids[0]}
    faults = [f"{place} names end token {result['end_ids'][place]}, expected {want}" for place, want in wanted.items() if result["end_ids"][place] != want]
    faults += [
        f"a generation forced to end token {token} ran to {length} tokens, expected {observer.FORCED_STEP}"
        for token, length in result["forced_lengths"].items() if length != observer.FORCED_STEP
    ]  # fmt: skip
    return faults + ["generation samples by default, expected greedy"] * (not result["greedy"])


def reload_in_fresh_process(ctx: Context, folder: Path, expected: Expectation) -> tuple[dict, list[Tensor]]:
    """Run observer.py on `folder` in an isolated interpreter (-I: neither this project nor PYTHON* variables reach it).

    Returns its result and the logits of each row. RuntimeError with its last words if it fails; Interrupted when a stop is asked for.
    """
    request_file, log_file = ctx.work / "reload_request.json", ctx.work / "reload.log"
    longest_prompt = max(1, expected.model.config.max_seq_len - observer.ROOM)
    write_json(request_file, {
        "folder": str(folder.resolve()), "rows": expected.rows, "prompt": expected.golden["prompt_ids"][-longest_prompt:], "end_ids": expected.end_ids,
        "texts": list(TEXTS), "messages": expected.golden["messages"], "forbidden_modules": list(PROJECT_PACKAGES),
    })  # fmt: skip
    command = [sys.executable, "-I", str(Path(observer.__file__).resolve()), str(request_file.resolve()), str(ctx.work.resolve())]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    with log_file.open("w", encoding="utf-8") as log, subprocess.Popen(command, cwd=ctx.work, env=offline, stdout=log, stderr=log) as child:
        while child.poll() is None:
            try:
                child.wait(timeout=POLL_SECONDS)
            except subprocess.TimeoutExpired:
                if ctx.should_stop():
                    child.kill()
                    raise Interrupted("stopped during the reload check; the export starts over next time") from None
    if child.returncode != 0:
        tail = "\n".join(log_file.read_text(encoding="utf-8").splitlines()[-LOG_LINES:])
        raise RuntimeError(f"plain transformers cannot use the exported {ctx.item} folder (exit code {child.returncode}); its last words:\n{tail}")
    logits = read_tensors(ctx.work / "logits.safetensors")
    return json.loads((ctx.work / "result.json").read_text(encoding="utf-8")), [logits[f"row.{i}"] for i in range(len(expected.rows))]
