"""What the report reads from the finished outputs of other stages, as plain records.

In: output folders. Out: frozen records with numbers already cleaned (an overflow is inf, an absent value nan). Every key of
another stage's report that this page uses is named here and nowhere else; a missing one is an error that names file and key.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

from stages.config import StageError
from stages.reporting.values import number

SPLITS = ("train", "val", "test")
TEXT = "text documents"
KINDS = (("text", "text", TEXT), ("chat", "chat", "chats"), ("problems", "prompts", "problems"))
"""(name in prepare's report, name in tokenize's report, words for people)."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a source comes from: what its records are and how that is known, under which terms, at which version."""

    name: str
    kind: str
    format: str
    detected_from: int | None
    """How many first records told the format; None when the entry did, or nothing had to."""
    licence: str | None
    revision: str | None
    """None for files of this machine and for what is made here."""


@dataclass(frozen=True, slots=True)
class Quote:
    """A dropped document and the evaluation items it quotes."""

    source: str
    document: str
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TextSource:
    """One source of pretraining text: records read, kept and dropped by reason; share of the text, wanted and realised."""

    name: str
    records: int
    kept: int
    dropped: Mapping[str, int]
    share: float
    asked_share: float
    missing_tokens: float
    places: Mapping[str, Sequence[str]]
    """Where the first records that do not fit stand, by reason."""
    changed: Mapping[str, int] | None
    """What cleaning changed, by kind; None when nothing is cleaned."""
    epochs: int
    """How often it is used, whole."""
    repeated_documents: int
    repeated_tokens: float


@dataclass(frozen=True, slots=True)
class RecordSource:
    """One source of chats, preferences or prompts."""

    name: str
    records: int
    kept: int
    dropped: Mapping[str, int]
    splits: Mapping[str, int]
    places: Mapping[str, Sequence[str]]
    unused_fields: Mapping[str, int]
    """Fields that the format has no use for -> records that have them."""


@dataclass(frozen=True, slots=True)
class NearDuplicates:
    """What the search for near-duplicates found, over all sources that take part."""

    threshold: float
    ngram: int
    documents: int
    groups: int
    in_groups: int
    largest_group: int


@dataclass(frozen=True, slots=True)
class Phase:
    """One stretch of training text with a mixture of its own: source -> (share, asked share)."""

    name: str
    tokens: float
    asked_tokens: float
    shares: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Split:
    """One split of one kind of record after tokenisation."""

    kind: str
    split: str
    rows: int
    tokens: int
    supervised: int
    longest: int
    repeats: int | None
    """Draws thrown away because they repeated an earlier one; None where nothing is drawn."""
    lengths: Mapping[int, int]
    """Most tokens of a bin (1, 3, 7, 15, ...) -> rows in it. Empty when tokenize did not count them."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """What the models were trained on. `unigram_bpb` is the baseline in bits per byte of held-out text, by split."""

    sources: tuple[TextSource, ...]
    records: tuple[RecordSource, ...]
    origins: tuple[Origin, ...]
    quotes: tuple[Quote, ...]
    """The first of each source."""
    near_duplicates: NearDuplicates | None
    """None when nobody looked."""
    phases: tuple[Phase, ...]
    splits: tuple[Split, ...]
    vocab_size: int
    unigram_bpb: Mapping[str, float]
    overlap: Mapping[str, int]
    """How many documents and questions were compared across splits, and how many were shared."""
    interpreter: str
    """Identity of the Python whose library is part of the text; empty when it is not."""


@dataclass(frozen=True, slots=True)
class Export:
    """One exported format: size of its weights, and divergence from the model it was made of on held-out tokens."""

    name: str
    file_bytes: float
    bits_per_weight: float
    kl_mean: float
    kl_p99: float
    top1: float
    ppl_ratio: float
    num_tokens: float


def read_json(path: Path) -> dict:
    """A JSON object. StageError when the file is missing or holds something else."""
    if not path.is_file():
        raise StageError(f"{path} does not exist; make it again with `dvc repro`")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise StageError(f"{path} is not JSON ({error}); make it again with `dvc repro`") from error
    if not isinstance(content, dict):
        raise StageError(f"{path} holds {type(content).__name__}, expected an object; make it again with `dvc repro`")
    return content


def pick(content: Mapping, path: Path, *keys: str) -> object:
    """content[key][key]..., or a StageError that names the file and the key it lacks."""
    for depth, key in enumerate(keys):
        if not isinstance(content, Mapping) or key not in content:
            raise StageError(f"{path} has no '{'.'.join(keys[: depth + 1])}', which the report shows; make it again with `dvc repro`")
        content = content[key]
    return content


def read_corpus(prepare: Path, tokenize: Path) -> Corpus:
    """Counts of the prepared and tokenised data. What only some settings bring (cleaning, repeats, phases, records) may be absent."""
    prepared, tokenised = prepare / "report.json", tokenize / "report.json"
    made, encoded = read_json(prepared), read_json(tokenised)
    text, found = pick(made, prepared, "text", "sources"), made.get("sources", {})
    splits = tuple(
        _split(words, split, _repeats(made, kind, split), pick(encoded, tokenised, shards, split), tokenised)
        for kind, shards, words in KINDS
        for split in SPLITS
    )
    return Corpus(
        sources=tuple(_text_source(name, facts, prepared) for name, facts in sorted(text.items())),
        records=tuple(_record_source(name, facts, prepared) for name, facts in sorted(found.items()) if name not in text),
        origins=tuple(_origin(name, facts, prepared) for name, facts in sorted(found.items())),
        quotes=tuple(
            Quote(name, str(quote["id"]), tuple(quote["items"])) for name, facts in sorted(text.items()) for quote in facts.get("quotes", ())
        ),
        near_duplicates=_near_duplicates(made["text"].get("near_duplicates"), prepared),
        phases=tuple(_phase(facts, prepared) for facts in made["text"].get("phases", ())),
        splits=splits,
        vocab_size=int(pick(encoded, tokenised, "vocab_size")),
        unigram_bpb={split: number(value) for split, value in pick(encoded, tokenised, "unigram_bits_per_byte").items()},
        overlap={key: int(pick(made, prepared, "overlap", key)) for key in ("documents", "questions", "shared")},
        interpreter=_interpreter(made.get("interpreter"), prepared),
    )


def _interpreter(facts: Mapping | None, path: Path) -> str:
    if facts is None:
        return ""
    name, version, files, digest = (pick(facts, path, key) for key in ("implementation", "python", "files", "stdlib_sha256"))
    return f"{name} {version}, {files} files of its library, SHA-256 {digest}"


def _text_source(name: str, facts: Mapping, path: Path) -> TextSource:
    return TextSource(
        name=name,
        records=int(pick(facts, path, "records")),
        kept=int(pick(facts, path, "kept")),
        dropped=dict(pick(facts, path, "dropped")),
        share=number(pick(facts, path, "share")),
        asked_share=number(pick(facts, path, "asked_share")),
        missing_tokens=number(pick(facts, path, "missing_tokens")),
        places=facts.get("places", {}),
        changed=facts.get("changed"),
        epochs=int(facts.get("epochs", 1)),
        repeated_documents=int(facts.get("repeated_documents", 0)),
        repeated_tokens=number(facts.get("repeated_tokens", 0)),
    )


def _record_source(name: str, facts: Mapping, path: Path) -> RecordSource:
    return RecordSource(
        name=name,
        records=int(pick(facts, path, "records")),
        kept=int(pick(facts, path, "kept")),
        dropped=dict(pick(facts, path, "dropped")),
        splits={split: int(pick(facts, path, "splits", split)) for split in SPLITS},
        places=facts.get("places", {}),
        unused_fields=facts.get("unused_fields", {}),
    )


def _origin(name: str, facts: Mapping, path: Path) -> Origin:
    kind, form = (str(pick(facts, path, key)) for key in ("kind", "format"))
    return Origin(name, kind, form, facts.get("detected_from"), facts.get("licence"), facts.get("revision"))


def _near_duplicates(facts: Mapping | None, path: Path) -> NearDuplicates | None:
    if facts is None:
        return None
    counts = (int(pick(facts, path, key)) for key in ("ngram", "documents", "groups", "in_groups", "largest_group"))
    return NearDuplicates(number(pick(facts, path, "threshold")), *counts)


def _phase(facts: Mapping, path: Path) -> Phase:
    shares = {
        name: (number(pick(source, path, "share")), number(pick(source, path, "asked_share")))
        for name, source in sorted(pick(facts, path, "sources").items())
    }
    return Phase(str(pick(facts, path, "name")), number(pick(facts, path, "tokens")), number(pick(facts, path, "asked_tokens")), shares)


def _repeats(made: Mapping, kind: str, split: str) -> int | None:
    return None if kind == "text" else made.get(kind, {}).get(split, {}).get("dropped", {}).get("repeat")


def _split(kind: str, split: str, repeats: int | None, facts: Mapping, path: Path) -> Split:
    rows, tokens, supervised, longest = (int(pick(facts, path, key)) for key in ("rows", "tokens", "supervised_tokens", "longest_row"))
    lengths = {int(top): int(count) for top, count in facts.get("lengths", {}).items()}
    return Split(kind, split, rows, tokens, supervised, longest, repeats, lengths)


def read_export(name: str, folder: Path) -> Export:
    """Size and fidelity of one export; a value that its stage could not measure is nan or inf here."""
    content = read_json(folder / "fidelity.json")
    keys = ("file_bytes", "bits_per_weight", "kl_mean", "kl_p99", "top1_agreement", "ppl_ratio", "num_tokens")
    return Export(name, *(number(content.get(key, math.nan)) for key in keys))


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One model on the held-out text and problems. `records` holds one mapping per problem (id, task, prompt, answer,
    completion, correct, n, c); `protocol` is the hash of everything that must be equal for two evaluations to be comparable."""

    model: str
    records: tuple[Mapping, ...]
    bits_per_byte: float
    unigram_bpb: float
    too_long: int
    protocol: str

    def share(self, key: str) -> float:
        """Share of the problems whose record says `key`, nan when the records do not say."""
        flags = [bool(record[key]) for record in self.records if key in record]
        return sum(flags) / len(flags) if flags else math.nan

    @property
    def sampled_accuracy(self) -> float:
        """Mean share of right answers among the sampled ones; nan when nothing was sampled."""
        shares = [record["c"] / record["n"] for record in self.records if record["n"]]
        return math.fsum(shares) / len(shares) if shares else math.nan


RECORD_KEYS = frozenset({"id", "task", "prompt", "answer", "completion", "correct", "n", "c"})


def read_evaluation(model: str, folder: Path) -> Evaluation:
    """The records and the text score of one evaluated model."""
    path, samples = folder / "report.json", folder / "samples.jsonl"
    report = read_json(path)
    if not samples.is_file():
        raise StageError(f"{samples} does not exist; make it again with `dvc repro evaluate@{model}`")
    records = tuple(json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines() if line)
    lacking = next(
        ((line, RECORD_KEYS - record.keys()) for line, record in enumerate(records, 1) if not record.keys() >= RECORD_KEYS), None
    )
    if lacking or not records:
        raise StageError(
            f"{samples} "
            + (f"line {lacking[0]} lacks {sorted(lacking[1])}" if lacking else "is empty")
            + f"; make it again with `dvc repro evaluate@{model}`"
        )
    return Evaluation(
        model=model,
        records=records,
        bits_per_byte=number(pick(report, path, "text", "bits_per_byte")),
        unigram_bpb=number(pick(report, path, "text", "unigram_bits_per_byte")),
        too_long=int(report.get("problems_too_long", 0)),
        protocol=str(pick(report, path, "identity", "evaluation")),
    )


def check_comparable(evaluations: Mapping[str, Evaluation]) -> None:
    """StageError unless every model was evaluated under the same settings, data and grader."""
    first = next(iter(evaluations.values()))
    other = [model for model, evaluation in evaluations.items() if evaluation.protocol != first.protocol]
    if other:
        raise StageError(
            f"evaluations of {', '.join(other)} used other settings, data or grader than that of {first.model}; "
            "their numbers cannot be compared: run `dvc repro` so that all are made alike"
        )


def count_parameters(weights: Path) -> int:
    """Stored parameters of a safetensors file, from its header alone."""
    if not weights.is_file():
        raise StageError(f"{weights} does not exist; make it again with `dvc repro`")
    with safe_open(weights, framework="numpy") as tensors:
        return sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118  (safe_open is not iterable)
