"""The data section: where the training text came from, what was dropped, changed and repeated, and how long the records are.

In: the counts that prepare and tokenize report. Out: one section. Records in = kept + dropped, for every source; a table whose
numbers did not add up would be an error of the stage, so it is checked there and shown here. What the settings did not ask for
(cleaning, phases, sources of records) has no table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stages.reporting.charts import Axis, bar_chart, doubling_histogram
from stages.reporting.inputs import SPLITS, TEXT, Corpus, NearDuplicates, Origin, Phase, Quote, RecordSource, Split, TextSource
from stages.reporting.markup import Markup, join, tag
from stages.reporting.page import Column, Part, figure, figures, numeric, remark, table, titled
from stages.reporting.reasons import CHANGED, DROPPED, ordered, words_of
from stages.reporting.values import MISSING, count, decimal, percent

BAR_WIDTHS = (848.0, 358.0)
HISTOGRAM = (380.0, 190.0)
DIGEST = 8
"""Digits of a long id that are shown."""


def section(corpus: Corpus) -> Part:
    """Mixture, phases, drops, changes, splits, lengths."""
    repeats = any(source.repeated_documents for source in corpus.sources)
    smaller = "used whole, and again in whole passes as far as its repeat_cap allows" if repeats else "used once, whole, and never repeated"
    note = (
        f"Shares are by bytes of text{', repeats included' if repeats else ''}. A source that is smaller than its share is {smaller}. "
        "Splits are by content, so equal records cannot land on both sides."
    )
    text = [_mixture(corpus), _phases(corpus.phases), _origins(corpus.origins)]
    drops = [
        _ledger("Pretraining text: records read, dropped by reason, and kept", corpus.sources),
        _duplicates(corpus.sources, corpus.near_duplicates),
        _changes(corpus.sources),
        _quotes(corpus.quotes),
        _ledger("Chats, preferences and prompts from sources: records read, dropped by reason, and kept", corpus.records),
        _places((*corpus.sources, *corpus.records)),
        _unused(corpus.records),
    ]
    return Part("data", "Data", note, join([*text, *drops, _lengths(corpus.splits), _splits(corpus.splits), _closing(corpus)]))


def _closing(corpus: Corpus) -> Markup:
    baseline = ", ".join(f"{decimal(value, 3)} on {split}" for split, value in sorted(corpus.unigram_bpb.items()))
    documents, questions, shared = (count(corpus.overlap[key]) for key in ("documents", "questions", "shared"))
    return remark(
        f"Vocabulary: {count(corpus.vocab_size)} tokens. Token frequencies alone give {baseline} bits per byte of held-out text. "
        f"Across splits {documents} documents and {questions} questions were compared; {shared} are shared."
    )


def _mixture(corpus: Corpus) -> Markup:
    measured = sorted((source for source in corpus.sources if math.isfinite(source.share)), key=lambda source: (-source.share, source.name))
    bars = [(source.name, source.share, f"{percent(source.share)} (asked {percent(source.asked_share)})") for source in measured]
    short = [
        f"{source.name} is {count(source.missing_tokens)} estimated tokens short of its share"
        for source in corpus.sources
        if source.missing_tokens > 0
    ]
    again = [
        f"{source.name} is used {source.epochs} times: {count(source.repeated_documents)} documents, about {count(source.repeated_tokens)} "
        "tokens, are repeats"
        for source in corpus.sources
        if source.repeated_documents
    ]
    wide, narrow = (bar_chart("Mixture of the pretraining text", bars, width) for width in BAR_WIDTHS)
    return figure(wide, " ".join(f"{words}." for words in ("Mixture of the pretraining text", "; ".join(short), "; ".join(again)) if words), narrow=narrow)


def _phases(phases: Sequence[Phase]) -> Markup:
    """Sources down, phases across, in the order of training."""
    if not phases:
        return join([])
    names = sorted({name for phase in phases for name in phase.shares})
    rows = [[name, *(_phase_cell(phase, name) for phase in phases)] for name in names]
    rows.append(["tokens (estimated)", *(_sub(count(phase.tokens), f"asked {count(phase.asked_tokens)}") for phase in phases)])
    columns = [Column("source"), *numeric(*(f"{number}. {phase.name}" for number, phase in enumerate(phases, 1)))]
    return table("Phases of the pretraining text: share of each source", columns, rows)


def _phase_cell(phase: Phase, name: str) -> Markup | str:
    share, asked = phase.shares.get(name, (0.0, 0.0))
    return _sub(percent(share), f"asked {percent(asked)}") if share or asked else "none"


def _sub(main: str, below: str) -> Markup:
    return join([main, tag("span", below, class_="sub")])


def _origins(origins: Sequence[Origin]) -> Markup:
    """Left out when every source is made here, and there is nothing to say of its terms."""
    if not any(origin.detected_from or origin.licence or origin.revision or origin.kind != "text" for origin in origins):
        return join([])
    rows = [
        [
            origin.name,
            origin.kind,
            _sub(origin.format, f"detected from {origin.detected_from} records") if origin.detected_from else origin.format,
            origin.licence or "not stated",
            tag("span", origin.revision, class_="hash") if origin.revision else "on this machine",
        ]
        for origin in origins
    ]
    return table("Sources", [Column(head) for head in ("source", "kind", "format", "licence", "revision")], rows)


def _ledger(caption: str, sources: Sequence[TextSource] | Sequence[RecordSource]) -> Markup:
    """Reasons down, sources across, so that a column adds up and a new reason needs no room at the side."""
    if not sources:
        return join([])
    of_records = isinstance(sources[0], RecordSource)
    reasons = ordered({reason for source in sources for reason in source.dropped}, DROPPED)
    rows = [["read", *(count(source.records) for source in sources)]]
    rows += [[words_of(reason, of_records), *(count(source.dropped.get(reason, 0)) for source in sources)] for reason in reasons]
    rows.append(["kept", *(tag("b", count(source.kept)) for source in sources)])
    if of_records:
        rows += [[f"of these {split}", *(count(source.splits[split]) for source in sources)] for split in SPLITS]
    return table(caption, [Column(""), *numeric(*(source.name for source in sources))], rows)


def _duplicates(sources: Sequence[TextSource], near: NearDuplicates | None) -> Markup:
    exact = sum(source.dropped.get("duplicate", 0) for source in sources)
    words = f"Exact duplicates in the text, over all sources: {count(exact)}."
    if near is None:
        return remark(f"{words} Near-duplicates were not looked for.")
    dropped = sum(source.dropped.get("near_duplicate", 0) for source in sources)
    fate = f"{count(dropped)} documents, exact copies included, were dropped for a longer one" if dropped else "none was dropped"
    return remark(
        f"{words} Among {count(near.documents)} different documents, {count(near.in_groups)} are near-duplicates, in {count(near.groups)} groups "
        f"(the largest has {count(near.largest_group)}), at a Jaccard similarity of {near.threshold:g} or more over {near.ngram}-word shingles; "
        f"{fate}. A group shares a split."
    )


def _changes(sources: Sequence[TextSource]) -> Markup:
    cleaned = [(source.name, source.changed) for source in sources if source.changed is not None]
    kinds = ordered({kind for _, changed in cleaned for kind, number in changed.items() if number}, CHANGED)
    if not cleaned:
        return join([])
    if not kinds:
        return remark(f"Cleaning changed nothing in the text of {', '.join(name for name, _ in cleaned)}.")
    rows = [[CHANGED.get(kind, kind), *(count(changed.get(kind, 0)) for _, changed in cleaned)] for kind in kinds]
    caption = "What cleaning changed in the text, that of documents dropped later included"
    return table(caption, [Column(""), *numeric(*(name for name, _ in cleaned))], rows)


def _quotes(quotes: Sequence[Quote]) -> Markup:
    if not quotes:
        return join([])
    rows = [[quote.source, tag("code", quote.document[:DIGEST]), _lines([_item(item) for item in quote.items])] for quote in quotes]
    return table("Text that quotes evaluation items, dropped: the first of each source", [Column("source"), Column("document"), Column("quotes")], rows)


def _lines(names: Sequence[str]) -> Markup:
    """Names of places or items, one a line."""
    return join([tag("code", name, class_="line") for name in names])


def _item(name: str) -> str:
    """problems/test/<long id> with fewer digits."""
    folder, _, key = name.rpartition("/")
    return f"{folder}/{key[:DIGEST]}" if folder else key[:DIGEST]


def _places(sources: Sequence[TextSource | RecordSource]) -> Markup:
    rows = [
        [source.name, words_of(reason), count(source.dropped.get(reason, len(places))), _lines(places)]
        for source in sources
        for reason, places in sorted(source.places.items())
    ]
    columns = [Column("source"), Column("reason"), *numeric("records"), Column("first places")]
    return table("Records that do not fit their format", columns, rows) if rows else join([])


def _unused(sources: Sequence[RecordSource]) -> Markup:
    unused = [
        f"{source.name}: {', '.join(f'{field} ({count(number)})' for field, number in source.unused_fields.items())}"
        for source in sources
        if source.unused_fields
    ]
    return remark(f"Fields that nothing reads, with the records that have them. {'; '.join(unused)}.") if unused else join([])


def _lengths(splits: Sequence[Split]) -> Markup:
    """Training rows by length, a chart for each kind that has any."""
    drawn = [split for split in splits if split.split == "train" and any(split.lengths.values())]
    charts = [
        titled(
            f"Length of {split.kind}",
            doubling_histogram(f"Length of {split.kind}", Axis("tokens"), Axis("training records", whole=True), split.lengths, *HISTOGRAM),
            f"Half of the {count(split.rows)} have at most {count(_median_top(split))} tokens; the longest has {count(split.longest)}.",
        )
        for split in drawn
    ]
    return figures(charts) if charts else join([])


def _median_top(split: Split) -> int:
    """Most tokens of the bin that holds the median row."""
    below, half = 0, sum(split.lengths.values()) / 2
    for top, rows in sorted(split.lengths.items()):
        below += rows
        if below >= half:
            return min(top, split.longest)
    raise AssertionError(f"lengths of {split.kind} hold no row")


def _splits(splits: Sequence[Split]) -> Markup:
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
