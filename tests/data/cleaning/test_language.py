"""Language identification."""

from __future__ import annotations

import pytest

from data.cleaning.language import SAMPLE_CHARACTERS, known_languages, language_of


@pytest.mark.parametrize(("text", "language"), [
    ("The committee met on Tuesday to talk about the new library, and everyone agreed.", "en"),
    ("Le comit\u00e9 s'est r\u00e9uni mardi pour parler de la nouvelle biblioth\u00e8que.", "fr"),
    ("Der Ausschuss traf sich am Dienstag, um \u00fcber die neue Bibliothek zu sprechen.", "de"),
    ("\u041a\u043e\u043c\u0438\u0442\u0435\u0442 \u0441\u043e\u0431\u0440\u0430\u043b\u0441\u044f \u0432\u043e \u0432\u0442\u043e\u0440\u043d\u0438\u043a, \u0447\u0442\u043e\u0431\u044b \u043f\u043e\u0433\u043e\u0432\u043e\u0440\u0438\u0442\u044c \u043e \u0431\u0438\u0431\u043b\u0438\u043e\u0442\u0435\u043a\u0435.", "ru"),
])
def test_sentences(text: str, language: str) -> None:
    found, probability = language_of(text)
    assert found == language and 0.5 < probability <= 1
    assert language_of(text) == (found, probability)


def test_only_the_beginning_is_read() -> None:
    text = "The committee met on Tuesday to talk about it. " * 100
    assert language_of(text) == language_of(text[:SAMPLE_CHARACTERS] + "\u043d\u0435\u0442 " * 1000)


def test_codes() -> None:
    assert {"en", "de", "zh", "ar"} <= set(known_languages()) and len(known_languages()) > 90
