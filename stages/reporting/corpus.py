"""The data section: where the training text came from, what was dropped and why, and how long the records are.

In: the counts that prepare and tokenize report. Out: one section. Records in = kept + dropped, for every source; a table whose
numbers did not add up would be an error of the stage, so it is checked there and shown here.
"""

from __future__ import annotations

import math

from stages.reporting.charts import bar_chart
from stages.reporting.inputs import TEXT, Corpus, Split, TextSource
from stages.reporting.markup import Markup, join
from stages.reporting.page import Column, Part, figure, numeric, remark, table
from stages.reporting.values import MISSING, count, decimal, percent

BAR_WIDTHS = (848.0, 358.0)
REASONS = {
    "empty": "empty",
    "undecodable": "undecodable",
    "contaminated": "quotes a held-out question",
    "duplicate": "duplicate",
    "over_budget": "over its share",
}
"""Words for the reasons that are known; any other reason is shown under its own name."""


def section(corpus: Corpus) -> Part:
    """Mixture, drops, splits."""
    note = (
        "Shares are by bytes of text. A source that is smaller than its share is used once, whole, and never repeated. "
        "Splits are by content, so equal records cannot land on both sides."
    )
    baseline = ", ".join(f"{decimal(value, 3)} on {split}" for split, value in sorted(corpus.unigram_bpb.items()))
    documents, questions, shared = (count(corpus.overlap[key]) for key in ("documents", "questions", "shared"))
    closing = remark(
        f"Vocabulary: {count(corpus.vocab_size)} tokens. Token frequencies alone give {baseline} bits per byte of held-out text. "
        f"Across splits {documents} documents and {questions} questions were compared; {shared} are shared."
    )
    return Part("data", "Data", note, join([_mixture(corpus), _drops(corpus.sources), _splits(corpus.splits), closing]))


def _mixture(corpus: Corpus) -> Markup:
    ordered = sorted((source for source in corpus.sources if math.isfinite(source.share)), key=lambda source: (-source.share, source.name))
    bars = [(source.name, source.share, f"{percent(source.share)} (asked {percent(source.asked_share)})") for source in ordered]
    short = [
        f"{source.name} is {count(source.missing_tokens)} estimated tokens short of its share"
        for source in corpus.sources
        if source.missing_tokens > 0
    ]
    wide, narrow = (bar_chart("Mixture of the pretraining text", bars, width) for width in BAR_WIDTHS)
    return figure(wide, "Mixture of the pretraining text." + (f" {'; '.join(short)}." if short else ""), narrow=narrow)


def _drops(sources: tuple[TextSource, ...]) -> Markup:
    known = list(REASONS)
    found = {reason for source in sources for reason in source.dropped}
    reasons = sorted(found, key=lambda reason: (known.index(reason) if reason in REASONS else len(known), reason))
    columns = [Column("source"), *numeric("read", "kept", *(REASONS.get(reason, reason) for reason in reasons))]
    rows = [[source.name, count(source.records), count(source.kept), *_dropped(source, reasons)] for source in sources]
    return table("Pretraining text: records read, kept, and dropped by reason", columns, rows)


def _dropped(source: TextSource, reasons: list[str]) -> list[str]:
    return [count(source.dropped[reason]) if reason in source.dropped else MISSING for reason in reasons]


def _splits(splits: tuple[Split, ...]) -> Markup:
    columns = [Column("split"), *numeric("records", "tokens", "tokens each", "longest", "tokens trained on", "repeats dropped")]
    return table("Records after tokenisation", columns, [_split_row(split) for split in splits])


def _split_row(split: Split) -> list[str]:
    each = decimal(split.tokens / split.rows, 1) if split.rows else MISSING
    repeats = "see above" if split.repeats is None else count(split.repeats)
    return [f"{split.kind}, {split.split}", count(split.rows), count(split.tokens), each, count(split.longest), _supervised(split), repeats]


def _supervised(split: Split) -> str:
    if split.kind == TEXT:
        return "all"
    return f"{count(split.supervised)} ({percent(split.supervised / split.tokens, 0)})" if split.supervised else "none"
