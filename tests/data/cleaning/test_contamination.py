"""Overlap with evaluation items: n-grams of long ones, short ones whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from data.cleaning.contamination import build_index, is_contaminated, overlap

LONG = " ".join(f"w{i}" for i in range(20))
INDEX = build_index([("long", LONG), ("short", "What is 47 + 5?"), ("answered", "What is 47 + 5? 52"), ("tiny", "52")], 13)


def test_the_index_by_hand() -> None:
    assert {length: len(hashes) for length, hashes in INDEX.hashes.items()} == {5: 1, 6: 1, 13: 8}
    assert INDEX.items == ("long", "short", "answered", "tiny") and INDEX.too_short == 1


def test_thirteen_words_in_a_row_and_not_twelve() -> None:
    assert overlap(" ".join(["x", *LONG.split()[3:16], "y"]), INDEX) == overlap(f"X, {' '.join(LONG.upper().split()[3:16])}!", INDEX)
    found = overlap(" ".join(["x", *LONG.split()[3:16], "y"]), INDEX)
    assert (found.matches, found.whole_items, found.items) == (1, 0, ("long",))
    assert overlap(" ".join(["x", *LONG.split()[3:15], "y", *LONG.split()[16:]]), INDEX).matches == 0
    assert overlap(LONG, INDEX).matches == 8 == overlap(f"{LONG} and {LONG}", INDEX).matches - 0
    assert is_contaminated(found, 1) and not is_contaminated(found, 2)


def test_a_short_item_counts_whole() -> None:
    found = overlap("They asked: what is 47 + 5, and nobody knew", INDEX)
    assert found.items == ("short",) and found.whole_items == 1 and is_contaminated(found, 100)
    assert overlap("what is 47 + 5? 52", INDEX).items == ("short", "answered")
    for other in ("what is 47 - 5", "what is 47 + 52", "what is 147 + 5", "52", ""):
        assert overlap(other, INDEX).matches == 0, other


def test_an_item_with_several_texts_is_named_once() -> None:
    index = build_index([("a", LONG), ("a", f"{LONG} answer")], 13)
    assert overlap(f"{LONG} answer", index).items == ("a",)
    assert overlap("anything at all", build_index([], 13)).matches == 0


@given(st.lists(st.sampled_from("abc"), min_size=4, max_size=9), st.lists(st.sampled_from("abc"), max_size=12))
def test_whole_items_are_found_exactly_where_they_stand(item: list[str], text: list[str]) -> None:
    stands = any(text[i : i + len(item)] == item for i in range(len(text)))
    assert (overlap(" ".join(text), build_index([("item", " ".join(item))], 13)).whole_items == 1) == stands
