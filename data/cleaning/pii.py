"""Masking of personal data and secrets: e-mail addresses, phone numbers, public IP addresses, keys.

In: text and kinds. Out: text with a placeholder for each find, and counts by kind. Patterns, not understanding: names and postal
addresses stay, and a number must be written like a phone number to be one. Every pattern is bounded, so that a document of 20 MB
costs time in proportion to its size.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable

_EMAIL = re.compile(r"(?<![\w.+%-])[A-Za-z0-9][\w.+%-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w-])")
_PHONE = re.compile(
    r"(?<![\w.+-])(?:"
    r"\+\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{1,5}(?:[ .-]?\d{2,5}){1,4}"  # international, with its +
    r"|(?:\+?1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}"  # North American grouping
    r")(?![\w-]|\.\d)"
)
_IPV4 = re.compile(r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{1,4}:){1,7}(?::|[0-9A-Fa-f]{1,4}|(?::[0-9A-Fa-f]{1,4}){1,6})(?![\w:])")
_NOT_AN_ADDRESS = re.compile(r"(?:\bv|\bver|version|release|build|section|chapter|figure|table|\u00a7)[.:= ]*$", re.IGNORECASE)
_KEY = re.compile(
    r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY-----(?:[^-]|-(?!----)){0,16000}-----END (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY-----"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{36,255}\b|\bgithub_pat_[A-Za-z0-9_]{22,255}\b"
)
_ASSIGNED = re.compile(
    r"((?:api_?key|access_?key|secret|token|passwo?r?d)\w{0,32}[\"']?\s{0,4}[:=]\s{0,4}[\"']?)([A-Za-z0-9+/_=-]{20,200})(?![A-Za-z0-9+/_=-])",
    re.IGNORECASE,
)
_LEAST_ENTROPY = 3.5
"""Bits a character; English words stay under it at this length, random base64 lies above."""


def _mask_emails(text: str) -> tuple[str, int]:
    return _EMAIL.subn("<EMAIL>", text) if "@" in text else (text, 0)


def _mask_phones(text: str) -> tuple[str, int]:
    return _replace(_PHONE, text, "<PHONE>", lambda match: 8 <= sum(map(str.isdigit, match[0])) <= 15)


def _mask_addresses(text: str) -> tuple[str, int]:
    text, fourth = _replace(_IPV4, text, "<IP>", lambda match: _is_public(match[0]) and not _NOT_AN_ADDRESS.search(_before(match)))
    text, sixth = _replace(_IPV6, text, "<IP>", lambda match: _is_public(match[0]))
    return text, fourth + sixth


def _mask_keys(text: str) -> tuple[str, int]:
    text, known = _KEY.subn("<KEY>", text)
    found = 0

    def mask(match: re.Match) -> str:
        nonlocal found
        if not _is_random(match[2]):
            return match[0]
        found += 1
        return f"{match[1]}<KEY>"

    return _ASSIGNED.sub(mask, text), known + found


def _replace(pattern: re.Pattern, text: str, placeholder: str, is_meant: Callable[[re.Match], bool]) -> tuple[str, int]:
    found = 0

    def mask(match: re.Match) -> str:
        nonlocal found
        if not is_meant(match):
            return match[0]
        found += 1
        return placeholder

    return pattern.sub(mask, text), found


def _before(match: re.Match) -> str:
    return match.string[max(0, match.start() - 16) : match.start()]


def _is_public(address: str) -> bool:
    """Whether it points at somebody: private, loopback and documentation addresses do not, and 12:30:45 is no address at all."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return parsed.is_global and (parsed.version == 4 or parsed in ipaddress.ip_network("2000::/3"))


def _is_random(value: str) -> bool:
    """Letters and digits, and more entropy a character than words have."""
    counts = Counter(value)
    entropy = -sum(count / len(value) * math.log2(count / len(value)) for count in counts.values())
    return entropy >= _LEAST_ENTROPY and any(map(str.isdigit, value)) and any(map(str.isalpha, value))


MASKS: dict[str, Callable[[str], tuple[str, int]]] = {"key": _mask_keys, "email": _mask_emails, "ip": _mask_addresses, "phone": _mask_phones}


def mask(text: str, kinds: Iterable[str]) -> tuple[str, Counter]:
    """The text with each find of `kinds` (of MASKS) replaced, and {"masked_<kind>": finds}. Keys go first, phones last, whatever
    order is asked for, because a key may hold what looks like a number."""
    wanted, found = set(kinds), Counter()
    for kind, replace in MASKS.items():
        if kind in wanted:
            text, count = replace(text)
            if count:
                found[f"masked_{kind}"] = count
    return text, found
