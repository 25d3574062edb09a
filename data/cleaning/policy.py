"""What to clean in one source of the mixture, and cleaning one text by it.

In: settings from the mixture (all off unless set) and a text. Out: the text as it will be trained on, or the reason it is dropped, and
counts of what was changed in it. Order: Unicode, then quality rules in the order given, language, contamination, masking.
Near-duplicates need the whole corpus: data/corpus.py finds them from the signatures that pass 1 leaves.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from data.cleaning.contamination import EvaluationIndex, is_contaminated, overlap
from data.cleaning.language import known_languages, language_of
from data.cleaning.minhash import choose_bands
from data.cleaning.pii import MASKS, mask
from data.cleaning.rules import apply_rules, expand
from data.cleaning.unicode import normalise


@dataclass(frozen=True, kw_only=True)
class NearDuplicates:
    """Which documents count as copies of each other."""

    __pydantic_config__ = {"extra": "forbid", "strict": True}
    threshold: float = 0.8
    """Least Jaccard similarity of the sets of n-grams."""
    ngram: int = 5
    """Words in a shingle."""
    num_perm: int = 128
    """Minima in a signature; 4 bytes each on disk while prepare runs."""
    keep: Literal["one", "all"] = "one"
    """one: the longest of a group, then the smallest id. all: none is dropped, but the group shares a split."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1 or self.ngram < 1 or self.num_perm < 1:
            raise ValueError(f"near_duplicates: got threshold {self.threshold}, ngram {self.ngram}, num_perm {self.num_perm}; expected 0 < threshold <= 1 "
                             "and whole numbers above zero")
        choose_bands(self.threshold, self.num_perm)


@dataclass(frozen=True, kw_only=True)
class Contamination:
    """When a document counts as quoting an evaluation item."""

    __pydantic_config__ = {"extra": "forbid", "strict": True}
    ngram: int = 13
    """Words in a row; a shorter item is looked for whole."""
    min_matches: int = 1
    """Distinct n-grams in common from which a document is dropped."""

    def __post_init__(self) -> None:
        if self.ngram < 4 or self.min_matches < 1:
            raise ValueError(f"contamination: got ngram {self.ngram}, min_matches {self.min_matches}; expected at least 4 and 1")


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """Everything that may be done to a source's text; as it stands, nothing."""

    __pydantic_config__ = {"extra": "forbid", "strict": True}
    unicode: Literal["none", "nfc", "nfkc"] = "none"
    rules: list[str] = field(default_factory=list)
    """Families or single rules (cleaning/rules.py), applied in this order."""
    languages: list[str] = field(default_factory=list)
    """ISO 639 codes to keep; empty: all."""
    near_duplicates: NearDuplicates | None = None
    contamination: Contamination | None = None
    pii: list[Literal["email", "phone", "ip", "key"]] = field(default_factory=list)
    """Kinds to replace by a placeholder."""

    def __post_init__(self) -> None:
        expand(self.rules)  # refuses unknown ones
        if self.languages and (unknown := sorted(set(self.languages) - set(known_languages()))):
            raise ValueError(f"languages: no model for {', '.join(unknown)}; expected some of {', '.join(known_languages())}")
        if unknown := sorted(set(self.pii) - set(MASKS)):
            raise ValueError(f"pii: unknown kind {', '.join(unknown)}; expected some of {', '.join(sorted(MASKS))}")

    @cached_property
    def single_rules(self) -> tuple[str, ...]:
        """`rules` with the families spelled out."""
        return expand(self.rules)


class Cleaned(NamedTuple):
    """A text after cleaning."""

    text: str
    reason: str | None
    """Why it is dropped, or None."""
    changed: Counter
    """What was changed in it, by kind; of a dropped text too."""
    quoted: tuple[str, ...]
    """Ids of the evaluation items it quotes; of a dropped text only."""


def clean(text: str, cleaning: Cleaning, evaluation: EvaluationIndex | None) -> Cleaned:
    """Apply all of it. `evaluation` is what contamination is judged against; None skips that."""
    text, changed = normalise(text, cleaning.unicode)
    text, reason, taken = apply_rules(text, cleaning.single_rules)
    changed += taken
    if reason is None and cleaning.languages and language_of(text)[0] not in cleaning.languages:
        reason = "language"
    if reason is None and cleaning.contamination and evaluation:
        found = overlap(text, evaluation)
        if is_contaminated(found, cleaning.contamination.min_matches):
            return Cleaned(text, "contaminated", changed, found.items)
    if reason is None and cleaning.pii:
        text, masked = mask(text, cleaning.pii)
        changed += masked
    return Cleaned(text, reason, changed, ())
