"""Byte-level BPE: training, the tokenizer folder, and encoding of plain text.

In: strings. Out: a Hugging Face tokenizer folder that any engine loads, and token ids. Every string round-trips, because the
256 bytes are in the alphabet and nothing is normalised. Digits are split singly, so numbers are spelled, not memorised.

Text never becomes a control token (<|endoftext|>, <|im_start|>, ...): all text is encoded by a PlainEncoder, which holds the
same BPE without the added tokens. Control ids enter only from structure, in data/chat.py and at document ends.

Byte-level BPE: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2. The split pattern is
that of the Qwen2 / Qwen3 tokenizers, a single-digit form of GPT-4's.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from data.words import ByteSeams, WordCache, cut


class ChatTokenizer(Protocol):
    """What is asked of a loaded tokenizer; transformers' PreTrainedTokenizerFast has it. Worker processes do with a bare Tokenizer."""

    chat_template: str
    eos_token_id: int
    unk_token_id: int | None
    backend_tokenizer: Tokenizer

    def __len__(self) -> int: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def convert_tokens_to_ids(self, tokens: str) -> int | None: ...

    def apply_chat_template(self, conversation: list[dict[str, str]], *, tokenize: bool, return_dict: bool) -> list[int]: ...


END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
THINK_START = "<think>"
THINK_END = "</think>"
CONTROL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END, THINK_START, THINK_END)
"""In the order of their ids, 0 to 4, whatever the vocabulary size."""
NUM_BYTES = 256
SMALLEST_VOCAB = len(CONTROL_TOKENS) + NUM_BYTES

SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)
"""No token spans two matches of this pattern."""
_OUR_SPLIT = {
    "type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": SPLIT_PATTERN}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    ],
}  # fmt: skip
_BATCH_CHARS = 1 << 20


def train_bpe(texts: Iterable[str], vocab_size: int, min_frequency: int) -> Tokenizer:
    """Train on `texts`; the result depends on their content alone, not on the number of threads.

    vocab_size: entries including the 5 control tokens and the 256 bytes. min_frequency: a pair seen less often is not merged.
    ValueError when vocab_size is below 261 or above what the texts support.
    """
    if vocab_size < SMALLEST_VOCAB:
        raise ValueError(f"vocab_size={vocab_size} is too small; expected at least {SMALLEST_VOCAB} (256 bytes and {len(CONTROL_TOKENS)} control tokens)")
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])  # adds no start token
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    reached = tokenizer.get_vocab_size()
    if reached < vocab_size:
        raise ValueError(
            f"vocab_size={vocab_size}, but the training sample supports only {reached} entries (no pair left that occurs {min_frequency} times); "
            f"set vocab_size to {reached} or less, lower min_frequency, or train on more text"
        )
    return _with_control_flags(tokenizer)


def _with_control_flags(tokenizer: Tokenizer) -> Tokenizer:
    """Think tags are marked not special, as in Qwen3: clients that skip special tokens still need them to part the reasoning."""
    description = json.loads(tokenizer.to_str())
    for token in description["added_tokens"]:
        token["special"] = token["content"] not in (THINK_START, THINK_END)
    return Tokenizer.from_str(json.dumps(description))


def save_tokenizer(folder: Path, tokenizer: Tokenizer, chat_template: str) -> None:
    """Write tokenizer.json and tokenizer_config.json, byte for byte the same for the same arguments.

    The template is kept inside tokenizer_config.json, where every reader of Hugging Face folders looks for it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    definition = tokenizer.to_str(pretty=True)
    (folder / "tokenizer.json").write_text(definition + "\n", encoding="utf-8")
    added = json.loads(definition)["added_tokens"]
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in added},
        "bos_token": None,
        "chat_template": chat_template,
        "clean_up_tokenization_spaces": False,
        "eos_token": TURN_END,
        "model_max_length": 1 << 30,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def load_tokenizer(folder: Path) -> ChatTokenizer:
    """Load a tokenizer folder from disk. ValueError when it is absent or lacks a control token or a chat template."""
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(f"{folder} holds no tokenizer.json; expected a tokenizer folder as written by the tokenize stage")
    from transformers import PreTrainedTokenizerFast  # takes seconds, and worker processes do without it

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    control_ids(tokenizer)
    if not tokenizer.chat_template:
        raise ValueError(f"{folder} has no chat template; copy the whole tokenizer folder, not tokenizer.json alone")
    return tokenizer


def load_bare(folder: Path) -> Tokenizer:
    """The tokenizer of a folder without its chat template, for encoding by structure: what a worker process needs, quickly loaded."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def control_ids(tokenizer: ChatTokenizer | Tokenizer) -> dict[str, int]:
    """Control token -> id. ValueError names those that the tokenizer lacks."""
    backend = tokenizer if isinstance(tokenizer, Tokenizer) else tokenizer.backend_tokenizer
    ids = {token: backend.token_to_id(token) for token in CONTROL_TOKENS}
    missing = [token for token, index in ids.items() if index is None]
    if missing:
        raise ValueError(f"tokenizer lacks the control token(s) {', '.join(missing)}; expected all of {', '.join(CONTROL_TOKENS)}")
    return ids


def fingerprint(folder: Path) -> dict[str, str]:
    """SHA-256 of the tokenizer and of the chat template in a folder, independent of formatting and key order.

    Two folders with equal fingerprints give equal ids for every conversation.
    """
    definition = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    template_file = folder / "chat_template.jinja"
    template = template_file.read_text(encoding="utf-8") if template_file.is_file() else config.get("chat_template")
    if not isinstance(template, str):
        raise ValueError(f"{folder} has no chat template; copy the whole tokenizer folder, not tokenizer.json alone")
    return {"tokenizer": _sha256(json.dumps(definition, sort_keys=True)), "template": _sha256(template)}


def check_fingerprint(folder: Path, expected: dict[str, str]) -> None:
    """ValueError when the tokenizer or the template in `folder` is not the one that `expected` (a fingerprint) names."""
    got = fingerprint(folder)
    changed = [name for name in sorted(got) if got[name] != expected.get(name)]
    if changed:
        raise ValueError(
            f"{' and '.join(changed)} in {folder} differ from those the tokens were made with "
            f"(got {got[changed[0]][:12]}, expected {str(expected.get(changed[0]))[:12]}); run the tokenize stage again or restore the folder"
        )


def token_dtype(vocab_size: int) -> type[np.unsignedinteger]:
    """Storage type of token ids: uint16 up to 65,535 entries, else uint32."""
    return np.uint16 if vocab_size <= 65_535 else np.uint32


def as_tokens(ids: Sequence[int] | NDArray[np.integer], vocab_size: int) -> NDArray[np.unsignedinteger]:
    """Ids (n,) -> array (n,) of the vocabulary's storage type. ValueError for an id outside the vocabulary: it would wrap round."""
    wide = np.asarray(ids)
    wide = wide if wide.dtype.kind == "u" else wide.astype(np.int64)
    if wide.size and (wide.min() < 0 or wide.max() >= vocab_size):
        bad = int(wide.max() if wide.max() >= vocab_size else wide.min())
        raise ValueError(
            f"token id {bad} is outside the vocabulary of {vocab_size} entries; expected 0 to {vocab_size - 1}: "
            "these ids were made with another tokenizer, run the tokenize stage again"
        )
    return wide.astype(token_dtype(vocab_size))


@dataclass(frozen=True, slots=True)
class PlainEncoder:
    """Encodes text as text: a control token spelled in it comes out as ordinary tokens."""

    bpe: Tokenizer
    can_cut: bool
    """Whether long texts may be encoded in pieces, which holds for SPLIT_PATTERN without a normaliser."""
    words: WordCache | None
    """The fast way, for a tokenizer that splits by SPLIT_PATTERN and nothing else."""
    seams: ByteSeams | None

    def encode(self, texts: Sequence[str], forced: Counter[int] | None = None) -> list[NDArray[np.uint32]]:
        """Ids (n,) of each text. Long texts go through in pieces, so that memory does not grow with them.

        Pieces are cut where no token can span (data/words.py), so the ids are those of the whole. Only a text without any such
        place for 2 Mi characters is cut regardless: `forced` counts such cuts by the text's index.
        """
        pieces = [self._pieces(text, index, forced) for index, text in enumerate(texts)]
        if self.words is not None:
            return [_joined([self.words.encode(piece) for piece in parts]) for parts in pieces]
        pieces = [list(parts) for parts in pieces]
        ids = self._encode_pieces([piece for parts in pieces for piece in parts])
        return [_joined([next(ids) for _ in parts]) for parts in pieces]

    def _pieces(self, text: str, index: int, forced: Counter[int] | None) -> Iterator[str]:
        if not self.can_cut:
            yield text
            return
        for piece, is_forced in cut(text, self.seams):
            if is_forced and forced is not None:
                forced[index] += 1
            yield piece

    def _encode_pieces(self, pieces: list[str]) -> Iterator[NDArray[np.uint32]]:
        """Batches large enough for the threads of the tokenizer and small enough to forget."""
        batch: list[str] = []
        chars = 0
        for piece in [*pieces, None]:
            if piece is None or (batch and chars + len(piece) > _BATCH_CHARS):
                for encoding in self.bpe.encode_batch_fast(batch, add_special_tokens=False):
                    yield np.array(encoding.ids, dtype=np.uint32)
                batch, chars = [], 0
            if piece is not None:
                batch.append(piece)
                chars += len(piece)


@lru_cache(maxsize=4)
def plain_encoder(tokenizer: ChatTokenizer | Tokenizer) -> PlainEncoder:
    """The encoder of ordinary text that belongs to a tokenizer; cached, since large vocabularies take a second to parse."""
    backend = tokenizer if isinstance(tokenizer, Tokenizer) else tokenizer.backend_tokenizer
    description = json.loads(backend.to_str())
    description["added_tokens"] = []
    bpe = Tokenizer.from_str(json.dumps(description))
    pattern = json.dumps(SPLIT_PATTERN)[1:-1]
    can_cut = description["normalizer"] is None and pattern in json.dumps(description["pre_tokenizer"])
    is_ours = can_cut and description["pre_tokenizer"] == _OUR_SPLIT and description["model"]["type"] == "BPE" and not description["model"]["dropout"]
    return PlainEncoder(bpe=bpe, can_cut=can_cut, words=WordCache(bpe) if is_ours else None, seams=ByteSeams(bpe) if is_ours else None)


def _joined(parts: Sequence[NDArray[np.uint32]]) -> NDArray[np.uint32]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
