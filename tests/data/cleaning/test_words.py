"""Words and n-gram hashes: hand-worked splits, and equality of hashes exactly where the words are equal."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.cleaning.words import distinct, hash_ngrams, hash_words, maths_words, shingles, words


@pytest.mark.parametrize(("text", "expected"), [
    ("Hello, big_World 42!", ["hello", "big_world", "42"]),
    ("don\u2019t \u201cquote\u201d na\u00efve\u2014caf\u00c9", ["don", "t", "quote", "na\u00efve", "caf\u00e9"]),
    ("\u4f60\u597d\uff0cworld\u3002", ["\u4f60", "\u597d", "world"]),
    ("abc\u4f60def", ["abc", "\u4f60", "def"]),
    ("\u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440", ["\u043f\u0440\u0438\u0432\u0435\u0442", "\u043c\u0438\u0440"]),
    ("--- !!! ...", []),
])
def test_words_by_hand(text: str, expected: list[str]) -> None:
    assert [word.decode() for word in words(text)] == expected


@given(st.text(st.characters(max_codepoint=0x0DFF), max_size=60))
def test_spaced_scripts_split_as_the_regular_expression_would(text: str) -> None:
    assert words(text) == [word.encode() for word in re.findall(r"\w+", text.lower())]


def test_operators_before_numbers_tell_problems_apart() -> None:
    assert maths_words("What is 47 + 5?") == [b"what", b"is", b"47", b"+", b"5"] != maths_words("What is 47 - 5?")
    assert maths_words("well-known, a - b") == [b"well", b"known", b"a", b"b"]
    assert words("What is 47 + 5?") == words("What is 47 - 5?")


def test_hashes_are_the_same_in_every_process() -> None:
    assert hash_words([b"abc"])[0] == 0x44BC2CF5AD770999  # xxh64 of "abc", seed 0, from the algorithm's test vectors


@given(st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=12), st.integers(1, 5))
def test_ngram_hashes_are_equal_exactly_where_the_words_are(items: list[bytes], n: int) -> None:
    hashes = hash_ngrams(hash_words(items), n)
    grams = [tuple(items[i : i + n]) for i in range(len(items) - n + 1)]
    assert len(hashes) == len(grams)
    assert all((hashes[i] == hashes[j]) == (grams[i] == grams[j]) for i in range(len(grams)) for j in range(i))


def test_shingles_of_short_and_wordless_texts() -> None:
    assert len(shingles("one two three four five six", 5)) == 2
    assert len(shingles("one two", 5)) == 1 and shingles("one two", 5)[0] == shingles("ONE, two!", 5)[0] != shingles("two one", 5)[0]
    assert len(shingles("...", 5)) == 1 and shingles("...", 5)[0] != shingles("!!!", 5)[0]


@given(st.lists(st.integers(0, 9), max_size=20))
def test_distinct_is_sorted_and_single(values: list[int]) -> None:
    assert distinct(np.array(values, np.uint64)).tolist() == sorted(set(values))
