"""Unicode policy: leave the text alone, or bring it to one form and drop control characters.

In: text and a policy. Out: text and counts. `none` changes nothing. `nfc` composes characters (é as one code point), which changes no
meaning; `nfkc` also replaces compatibility characters (ﬁ by fi, full-width letters, ² by 2), which may. Both drop the control
characters that no text needs: C0 but tab, LF and CR, DEL, C1, and the byte order mark.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

POLICIES = ("none", "nfc", "nfkc")
REPLACEMENT = "\ufffd"
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufeff]")


def normalise(text: str, policy: str) -> tuple[str, Counter]:
    """The text in the policy's form and {"normalised": 0 or 1, "control_characters": dropped, "replacement_characters": seen, kept}.

    A replacement character (U+FFFD) stands for bytes that someone lost earlier; it is counted, because nothing can bring them back.
    ValueError for an unknown policy.
    """
    if policy not in POLICIES:
        raise ValueError(f"unicode: got '{policy}', expected one of {', '.join(POLICIES)}")
    found = Counter()
    if lost := text.count(REPLACEMENT):
        found["replacement_characters"] = lost
    if policy == "none":
        return text, found
    form = policy.upper()
    if not text.isascii() and not unicodedata.is_normalized(form, text):
        text = unicodedata.normalize(form, text)
        found["normalised"] = 1
    text, dropped = _CONTROL.subn("", text)
    if dropped:
        found["control_characters"] = dropped
    return text, found
