"""Opens an exported folder the way a stranger would: a fresh interpreter, plain transformers, no network, nothing of this project.

`python -I observer.py REQUEST.json RESULT_FOLDER`, started by stages/exporting/checks.py. In: the folder, rows of token ids, texts, a
conversation, the ids that must end a generation. Out: result.json with what the loader found missing or unexpected, the ids of the
texts and of the conversation, how long generations forced to an end token became, and logits.safetensors with "row.<i>" (T, V) float32.
It only observes; checks.py compares and decides.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList, PreTrainedModel

FORCED_STEP = 3
"""The forced end token is the third generated one: late enough to show that generation goes on before it."""
ROOM = 8
"""Tokens a forced generation may use if it does not stop."""


class ForceEnd(LogitsProcessor):
    """No end token before FORCED_STEP, then only `token`."""

    def __init__(self, prompt_length: int, end_ids: list[int], token: int) -> None:
        self.prompt_length, self.end_ids, self.token = prompt_length, end_ids, token

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        if input_ids.shape[1] - self.prompt_length + 1 == FORCED_STEP:
            scores.fill_(-torch.inf)
            scores[:, self.token] = 0.0
        else:
            scores[:, self.end_ids] = -torch.inf
        return scores


def forced_lengths(model: PreTrainedModel, prompt: list[int], end_ids: list[int]) -> dict[str, int]:
    """End token id -> number of tokens generated when it is forced, with no settings but those of the folder."""
    ids_BT = torch.tensor([prompt])
    lengths = {}
    for token in end_ids:
        force = LogitsProcessorList([ForceEnd(len(prompt), end_ids, token)])
        made = model.generate(ids_BT, attention_mask=torch.ones_like(ids_BT), max_new_tokens=ROOM, logits_processor=force)
        lengths[str(token)] = made.shape[1] - len(prompt)
    return lengths


@torch.inference_mode()
def observe(request: dict, result_folder: Path) -> None:
    """Load, measure, write the two result files."""
    folder = request["folder"]
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, local_files_only=True)
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    messages = request["messages"]
    logits = {f"row.{i}": model(torch.tensor([row])).logits[0].contiguous() for i, row in enumerate(request["rows"])}
    save_file(logits, result_folder / "logits.safetensors")
    result = {
        "loading": {kind: sorted(map(str, found)) for kind, found in info.items()},
        "text_ids": [tokenizer(text, add_special_tokens=True)["input_ids"] for text in request["texts"]],
        "chat_ids": tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False),
        "prompt_ids": tokenizer.apply_chat_template(messages[:-1], tokenize=True, add_generation_prompt=True, return_dict=False),
        "end_ids": {
            "config.json": model.config.eos_token_id,
            "generation_config.json": model.generation_config.eos_token_id,
            "tokenizer": tokenizer.eos_token_id,
        },
        "greedy": not model.generation_config.do_sample,
        "forced_lengths": forced_lengths(model, request["prompt"], request["end_ids"]),
        "foreign_modules": sorted(name for name in sys.modules if name.split(".")[0] in request["forbidden_modules"]),
    }
    (result_folder / "result.json").write_text(json.dumps(result, sort_keys=True), encoding="utf-8")


if __name__ == "__main__":
    observe(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
