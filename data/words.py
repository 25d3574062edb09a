"""Ids of plain text word by word, each different word encoded once.

In: the BPE of a tokenizer that splits by SPLIT_PATTERN, and texts. Out: the ids that the tokenizer itself gives, several times
faster: a text is split by Python's own regular expressions and the ids of its words are looked up; only words not seen before go
through the BPE. The two splits agree on a character when its class (letter, number, space, other) is the same in every version of
Unicode since 3.2; a stretch with any other character goes through the tokenizer as it is.

Long texts are handled in pieces cut where no token can span, so that memory does not grow with them. Such places are
- the ends of a match of SPLIT_PATTERN that do not depend on what stands around them (find_cut), and
- inside a run of letters or punctuation, two bytes that no entry of the vocabulary holds side by side: no merge joins what stands
  left of them with what stands right, so both sides merge as if alone (ByteSeams).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, pre_tokenizers

PIECE_CHARS = 1 << 16
LONGEST_PIECE = 1 << 21
"""Characters without a place to cut after which a text is cut regardless; such cuts are counted."""
_FOREIGN_CHARS = 256
_CACHED_CHARS, _CACHED_WORDS = 1 << 23, 1 << 18

# Places where SPLIT_PATTERN always ends a match, whatever stands around them: no alternative holds a non-space before a space,
# nor a letter before a non-letter, nor anything after a digit. Restricted to characters whose class is the same in every Unicode.
_MATCH_END = re.compile(
    r"\S(?= )"
    r"|[0-9]"
    r"|[A-Za-z](?=[\x00-@\[-`{-\x7f])"
    r"|[\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3](?=[\x00-@\[-`{-\x7f\u3001\u3002\uff01\uff0c\uff1f])"
)
# Places inside one match whose two sides would still be one match each: after three letters no contraction ('ll) reaches over the
# place; before two punctuation marks the first of them cannot begin a word (=abc).
_LETTERS = r"[A-Za-z\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3]"
_MARKS = r"[!-&(-/:-@\[-`{-~]"
_INNER = re.compile(rf"(?<={_LETTERS}{{2}}){_LETTERS}(?={_LETTERS})|{_MARKS}(?={_MARKS}{{2}})")
_SPACES = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_UNSTEADY = "\u0149\u017f\u212a\u180e"
"""Some engines take the first three for ASCII letters when case is ignored; the last was a space in the versions between."""


def find_cut(text: str, start: int, stop: int) -> int | None:
    """The first place in text[start:stop] where SPLIT_PATTERN surely ends a match, as an index into text; None when there is none."""
    match = _MATCH_END.search(text, start, stop)
    return match.end() if match else None


class ByteSeams:
    """Pairs of bytes that stand side by side in some entry of a vocabulary. Between any other two bytes no token can span."""

    def __init__(self, bpe: Tokenizer) -> None:
        byte_of = {char: byte for byte, char in enumerate(_byte_level_alphabet())}
        self._joined = np.zeros((256, 256), dtype=bool)
        for entry in bpe.get_vocab(with_added_tokens=False):
            units = [byte_of[char] for char in entry if char in byte_of]
            if len(units) == len(entry):
                self._joined[units[:-1], units[1:]] = True

    def find_cut(self, text: str, start: int, stop: int) -> int | None:
        """The first place in text[start:stop] that no token can span although it lies within one match; None when there is none."""
        for match in _INNER.finditer(text, start, stop):
            place = match.end()
            if not self._joined[text[place - 1].encode()[-1], text[place].encode()[0]]:
                return place
        return None


def cut(text: str, seams: ByteSeams | None, limit: int = PIECE_CHARS, longest: int = LONGEST_PIECE) -> Iterator[tuple[str, bool]]:
    """(piece, whether its end is forced): pieces of at least `limit` characters cut where no token spans, or of `longest` where there is no place."""
    start = 0
    while len(text) - start > limit:
        place = _find_place(text, seams, start + limit - 1, (start + 2 * limit, start + longest))
        stop = min(start + longest, len(text)) if place is None else place
        yield text[start:stop], place is None and stop < len(text)
        start = stop
    if start < len(text) or not text:
        yield text[start:], False


def _find_place(text: str, seams: ByteSeams | None, first: int, lasts: tuple[int, int]) -> int | None:
    """A place to cut, near before far: scanning far ahead for every piece would cost more than the encoding."""
    for last in lasts:
        place = find_cut(text, first, last)
        if place is None and seams is not None:
            place = seams.find_cut(text, first, last)
        if place is not None:
            return place
    return None


class WordCache:
    """Text -> ids by words. Not for several threads at once."""

    def __init__(self, bpe: Tokenizer) -> None:
        self.bpe = bpe
        self._words, self._other = _word_pattern(), _other_pattern()
        self._ids: dict[str, bytes] = {}
        self._chars = 0

    def encode(self, text: str) -> NDArray[np.uint32]:
        """Ids (n,) of a text that is split by SPLIT_PATTERN."""
        if not self._other.search(text):
            return np.frombuffer(self._known(text), dtype=np.uint32)
        pieces = [piece for piece, _ in cut(text, None, _FOREIGN_CHARS)]
        foreign = [bool(self._other.search(piece)) for piece in pieces]
        encoded = iter(self._encode([piece for piece, flag in zip(pieces, foreign) if flag]))
        return np.frombuffer(b"".join(next(encoded) if flag else self._known(piece) for piece, flag in zip(pieces, foreign)), dtype=np.uint32)

    def _known(self, text: str) -> bytes:
        words = self._words.findall(text)
        try:
            return b"".join(map(self._ids.__getitem__, words))
        except KeyError:
            self._learn(list(set(words).difference(self._ids)))
        ids = b"".join(map(self._ids.__getitem__, words))
        if self._chars > _CACHED_CHARS or len(self._ids) > _CACHED_WORDS:  # start over rather than grow with the corpus
            self._ids, self._chars = {}, 0
        return ids

    def _learn(self, words: list[str]) -> None:
        self._ids.update(zip(words, self._encode(words), strict=True))
        self._chars += sum(map(len, words))

    def _encode(self, texts: Sequence[str]) -> list[bytes]:
        return [np.array(encoding.ids, dtype=np.uint32).tobytes() for encoding in self.bpe.encode_batch_fast(texts, add_special_tokens=False)]


@cache
def character_classes() -> dict[str, str]:
    """Regex ranges of "letter", "number" and "steady": all characters of the basic plane whose class never changed since Unicode 3.2."""
    members: dict[str, list[int]] = {"letter": [], "number": [], "steady": []}
    for code in range(0x10000):
        char = chr(code)
        now, then = unicodedata.category(char), unicodedata.ucd_3_2_0.category(char)
        if now in ("Cn", "Cs") or char in _UNSTEADY or _class_of(now) != _class_of(then):
            continue
        members["steady"].append(code)
        if _class_of(now) in members:
            members[_class_of(now)].append(code)
    return {name: _ranges(codes) for name, codes in members.items()}


def _class_of(category: str) -> str:
    return {"L": "letter", "N": "number", "Z": "space"}.get(category[0], "unassigned" if category == "Cn" else "other")


def _ranges(codes: list[int]) -> str:
    """Ascending code points as the inside of a character class."""
    array = np.array(codes)
    breaks = np.flatnonzero(np.diff(array) > 1)
    starts, ends = array[np.r_[0, breaks + 1]], array[np.r_[breaks, len(array) - 1]]
    return "".join(f"\\u{first:04x}-\\u{last:04x}" for first, last in zip(starts, ends))


@cache
def _word_pattern() -> re.Pattern[str]:
    """SPLIT_PATTERN of data/tokenizer.py for steady characters, in the terms of Python's `re`."""
    letter, number = character_classes()["letter"], character_classes()["number"]
    return re.compile(
        r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
        rf"|[^\r\n{letter}{number}]?[{letter}]+"
        rf"|[{number}]"
        rf"| ?[^{_SPACES}{letter}{number}]+[\r\n]*"
        rf"|[{_SPACES}]*[\r\n]+"
        rf"|[{_SPACES}]+(?![^{_SPACES}])"
        rf"|[{_SPACES}]+"
    )


@cache
def _other_pattern() -> re.Pattern[str]:
    return re.compile(f"[^{character_classes()['steady']}]")


def _byte_level_alphabet() -> list[str]:
    """The character that stands for each byte, in the order of the bytes: printable ones for themselves, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    chars = {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(rest)}
    assert set(chars.values()) == set(pre_tokenizers.ByteLevel.alphabet()), "the byte alphabet of the tokenizers library is another one"
    return [chars[byte] for byte in range(256)]
