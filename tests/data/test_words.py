"""Encoding by words gives the tokenizer's own ids, whole or in pieces, for every character there is."""

from __future__ import annotations

import random
import sys
import time
import unicodedata
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, pre_tokenizers

from data.tokenizer import SPLIT_PATTERN, plain_encoder, train_bpe
from data.words import ByteSeams, WordCache, character_classes, cut, find_cut
from tests.data.toy_tokens import toy_tokenizer

SPLIT = pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated")
PIECES = ["word", " ", "  ", "\n", "\r\n", "\t", ".", "...", "7", "42", "'s", "'LL", "'", "é", "\u0301", "漢字", "。", "，", "カ", "한", "\u00a0", "\u3000", "<", "_x",
          "=", "ſ", "'ſ", "\u200b", "\u180e", "😀", "\x1c", "\x85", "Ⅷ", "²", "\ue000"]
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=2), max_size=40).map("".join)


def bpe() -> Tokenizer:
    return plain_encoder(toy_tokenizer()).bpe


def words_of_the_tokenizer(text: str) -> list[str]:
    return [word for word, _ in SPLIT.pre_tokenize_str(text)]


@settings(max_examples=150, deadline=None)
@given(texts)
def test_ids_by_words_are_the_ids_of_the_tokenizer(text: str) -> None:
    assert WordCache(bpe()).encode(text).tolist() == bpe().encode(text).ids


def test_every_steady_character_has_the_same_class_in_both_engines() -> None:
    """Each stands between letters, digits, spaces and an apostrophe, in turn: the words must be those of the tokenizer's own split."""
    import re

    steady = [char for char in map(chr, range(0x10000)) if re.match(f"[{character_classes()['steady']}]", char)]
    assert len(steady) > 40_000 and not {"ſ", "\u200b", "\u180e", "\ud800"} & set(steady)
    pattern = WordCache(bpe())._words
    for template in ("a{0}b", "1{0}1", " {0} ", "'{0}l ", "-{0}-", "\n{0}\n", "{0}{0}a"):
        text = "|".join(template.format(char) for char in steady)
        assert pattern.findall(text) == words_of_the_tokenizer(text), template


@settings(max_examples=150, deadline=None)
@given(texts, st.integers(1, 9))
def test_cutting_a_long_text_changes_no_id(text: str, limit: int) -> None:
    """DATA-11: the pieces' ids, joined, are the ids of the whole."""
    pieces = [piece for piece, _ in cut(text, ByteSeams(bpe()), limit)]
    assert "".join(pieces) == text
    assert [i for piece in pieces for i in bpe().encode(piece).ids] == bpe().encode(text).ids


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="abcdetrselv'-=.<漢字かな", max_size=60), st.integers(1, 5))
def test_cutting_inside_a_word_changes_no_id(text: str, limit: int) -> None:
    """DATA-11: seams of the vocabulary, in texts that hardly have any other place to cut."""
    seams = ByteSeams(bpe())
    pieces = [piece for piece, _ in cut(text, seams, limit)]
    assert [i for piece in pieces for i in bpe().encode(piece).ids] == bpe().encode(text).ids


def test_seams_by_hand() -> None:
    """A vocabulary that joins "ab" and "abab" only: b|a lies inside abab, so only c parts what stands around it."""
    small = train_bpe(["abab"] * 3, 263, 2)
    seams = ByteSeams(small)
    assert seams.find_cut("ababab", 2, 6) is None
    assert seams.find_cut("aaabcab", 0, 7) == 4  # after "aaab": b|c; a|a before it needs three letters on its left
    assert seams.find_cut("aaaabb", 0, 6) == 3
    assert find_cut("aaaabb", 0, 6) is None and find_cut("aa bb", 0, 5) == 2


@pytest.mark.parametrize("text", ["some words and more " * 9000, "x=1;" * 40_000, "漢字、カナ。" * 30_000, "0123456789" * 20_000, "quickbrownfox" * 20_000, "=<>-" * 60_000],
                         ids=["prose", "no space", "no ascii", "digits", "one word", "marks"])
def test_long_texts_are_cut_into_bounded_pieces(text: str) -> None:
    """DATA-11."""
    encoder = plain_encoder(toy_tokenizer())
    pieces = list(cut(text, encoder.seams))
    assert max(len(piece) for piece, _ in pieces) < 70_000 and not any(forced for _, forced in pieces)
    forced: Counter[int] = Counter()
    [ids] = encoder.encode([text], forced)
    assert toy_tokenizer().decode(ids) == text and not forced


def test_a_text_with_no_place_to_cut_is_cut_regardless_and_counted() -> None:
    """DATA-11: memory stays bounded, nothing is lost, and the cut is stated."""
    assert list(cut("a" * 25, None, 4, 10)) == [("a" * 10, True), ("a" * 10, True), ("a" * 5, False)]
    assert list(cut("aaaa aaaa", None, 4, 10)) == [("aaaa", False), (" aaaa", False)]
    forced: Counter[int] = Counter()
    encoder = plain_encoder(train_bpe(["aaaaaaaa"] * 3, 263, 2))
    [_, ids] = encoder.encode(["short", "a" * (5 << 20)], forced)
    assert forced == {1: 2} and len(ids) >= (5 << 20) // 8


def test_a_small_cache_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data.words._CACHED_WORDS", 3)
    rng = random.Random(1)
    cache = WordCache(bpe())
    for _ in range(50):
        text = "".join(rng.choices(PIECES, k=30))
        assert cache.encode(text).tolist() == bpe().encode(text).ids
        assert len(cache._ids) <= 3


def _text_of(size: int, spaced: bool) -> str:
    rng = random.Random(3)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(5000)]
    return ((" " if spaced else "").join(rng.choices(words, k=size // 5)))[:size]


@pytest.mark.parametrize("spaced", [True, False], ids=["prose", "no space"])
def test_a_megabyte_without_a_space_has_the_ids_of_the_whole(spaced: bool) -> None:
    """DATA-11: where the unsplit text can be run, its ids are the same."""
    text = _text_of(1 << 20, spaced)
    assert np.array_equal(plain_encoder(toy_tokenizer()).encode([text])[0], bpe().encode(text).ids)


@pytest.mark.slow
@pytest.mark.parametrize("spaced", [True, False], ids=["prose", "no space"])
def test_twenty_megabytes_take_time_in_proportion(spaced: bool) -> None:
    """DATA-11: a ratio of sizes of ten gives a ratio of times of about ten, far from its square."""
    encoder = plain_encoder(toy_tokenizer())
    seconds = []
    for size in (2 << 20, 20 << 20):
        text = _text_of(size, spaced)
        started = time.process_time()
        encoder.encode([text])
        seconds.append(time.process_time() - started)
    assert seconds[1] < 30 * seconds[0], seconds


def test_the_python_of_this_machine_knows_at_least_unicode_3_2() -> None:
    assert unicodedata.ucd_3_2_0.unidata_version == "3.2.0" and sys.maxunicode == 0x10FFFF
