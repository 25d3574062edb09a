"""Unicode policy."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.cleaning.unicode import normalise

MESSY = "e\u0301\ufb01\x00\x07\tx\r\n\u009d\ufeff\ufffd\ufffd"


def test_none_changes_nothing_and_counts_what_was_lost_before() -> None:
    assert normalise(MESSY, "none") == (MESSY, {"replacement_characters": 2})
    assert normalise("plain", "none") == ("plain", {})


def test_nfc_composes_and_nfkc_also_replaces_compatibility_characters() -> None:
    counts = {"normalised": 1, "control_characters": 4, "replacement_characters": 2}
    assert normalise(MESSY, "nfc") == ("\u00e9\ufb01\tx\r\n\ufffd\ufffd", counts)
    assert normalise(MESSY, "nfkc") == ("\u00e9fi\tx\r\n\ufffd\ufffd", counts)
    assert normalise("x\u00b2", "nfc") == ("x\u00b2", {}) and normalise("x\u00b2", "nfkc")[0] == "x2"


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ValueError, match="unicode: got 'nfd', expected one of none, nfc, nfkc"):
        normalise("x", "nfd")


@given(st.text(max_size=50), st.sampled_from(["nfc", "nfkc"]))
def test_a_second_time_finds_nothing_to_do(text: str, policy: str) -> None:
    once, _ = normalise(text, policy)
    again, counts = normalise(once, policy)
    assert again == once and set(counts) <= {"replacement_characters"} and unicodedata.is_normalized(policy.upper(), once)
