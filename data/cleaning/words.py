"""Words, n-grams and their hashes: the one notion of overlap shared by the repetition rules, near-duplicates and contamination.

In: text. Out: lower-case words and 64-bit hashes of n consecutive ones. A character of a script that is written without spaces
(Chinese, Japanese, Thai, Lao, Khmer, Burmese) counts as a word. The hashes are xxHash and arithmetic modulo 2^64, so they are the
same in every process, unlike Python's own.
Legend: N words, M n-grams.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from xxhash import xxh64_intdigest

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_HAS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_WORD_BYTES = bytes(code if code > 0x7F or chr(code).isalnum() or chr(code) == "_" else 0x20 for code in range(256))
_ANY_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
_OPERATOR = r"[+\-*/=<>^%](?=\s?\d)"
_MATHS_SPACED = re.compile(rf"\w+|{_OPERATOR}")
_MATHS_ANY = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+|{_OPERATOR}")
_BASE = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)


def words(text: str) -> list[bytes]:
    """Runs of letters, digits and underscores, lower-case, as UTF-8; punctuation and spacing are ignored.

    >>> words("Hello, big World")
    [b'hello', b'big', b'world']
    """
    lower = text.lower()
    if lower.isascii():
        return lower.encode().translate(_WORD_BYTES).split()
    if _HAS_UNSPACED.search(lower):
        return list(map(str.encode, _ANY_WORD.findall(lower)))
    # what \w+ would find, several times as fast: blank out the other characters, then split
    encoded = lower.encode()
    for character in set(lower):
        if character > "\x7f" and not character.isalnum():
            encoded = encoded.replace(character.encode(), b" ")
    return encoded.translate(_WORD_BYTES).split()


def maths_words(text: str) -> list[bytes]:
    """As `words`, but an operator before a number counts too, so that "7 + 5" and "7 - 5" differ."""
    pattern = _MATHS_ANY if not text.isascii() and _HAS_UNSPACED.search(text) else _MATHS_SPACED
    return list(map(str.encode, pattern.findall(text.lower())))


def hash_words(items: Sequence[bytes]) -> np.ndarray:
    """(N,) uint64: the xxh64 of each word."""
    return np.fromiter(map(xxh64_intdigest, items), np.uint64, len(items))


def distinct(hashes_M: np.ndarray) -> np.ndarray:
    """Sorted, each once; np.unique takes several times as long on short arrays."""
    ordered = np.sort(hashes_M)
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))] if len(ordered) else ordered


def hash_ngrams(hashes_N: np.ndarray, n: int) -> np.ndarray:
    """(M,) uint64 for the M = N - n + 1 runs of n words, in order; empty when there are fewer than n words.

    A polynomial in an odd base modulo 2^64, then a multiply-xorshift finaliser, so that all 64 bits depend on all words.
    """
    num = len(hashes_N) - n + 1
    if num <= 0:
        return np.empty(0, np.uint64)
    mixed = hashes_N[:num].copy()
    for offset in range(1, n):
        mixed *= _BASE
        mixed += hashes_N[offset : offset + num]
    mixed ^= mixed >> np.uint64(31)
    mixed *= _MIX
    mixed ^= mixed >> np.uint64(29)
    return mixed


def shingles(text: str, n: int) -> np.ndarray:
    """Sorted distinct hashes of the text's n-grams; of the whole text when it has fewer than n words. Never empty."""
    found = words(text)
    if not found:
        return np.array([xxh64_intdigest(text.strip().encode())], np.uint64)
    return distinct(hash_ngrams(hash_words(found), min(n, len(found))))
