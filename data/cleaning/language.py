"""Language of a document, by py3langid: a naive Bayes classifier over byte n-grams, its model inside the package.

In: text. Out: an ISO 639 code and a probability. Only the first 4,000 characters are read, so that a long document costs no more. The
model is loaded once a process, on first use (about a second); the answer depends on the text alone.
"""

from __future__ import annotations

from functools import cache

from py3langid.langid import MODEL_FILE, LanguageIdentifier

SAMPLE_CHARACTERS = 4_000


@cache
def _model() -> LanguageIdentifier:
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def language_of(text: str) -> tuple[str, float]:
    """The most likely language and its probability in [0, 1]; very short texts and program code are guesses with a low one."""
    return _model().classify(text[:SAMPLE_CHARACTERS])


def known_languages() -> tuple[str, ...]:
    """Codes that can be asked for, sorted."""
    return tuple(sorted(_model().labels))
