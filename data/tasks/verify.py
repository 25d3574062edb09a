"""Answer checking: the text after the last "####" against the known answer, exactly, after normalisation.

In: completion text and gold answer (ours, or a GSM8K record's). Out: True / False, or a reward of 1.0 / 0.0. Nothing is cut at a
stop string, so an equals sign or the word "Question" inside an answer does no harm. Only the last marker counts: a completion
that lists several guesses is judged by the one it ends with.
"""

from __future__ import annotations

import re

MARKER = "####"
_TRAILING = re.compile(r"[.,\s]+\Z")
_NUMBER = re.compile(r"([+-]?)([0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)?(?:\.([0-9]*))?")


def extract_answer(text: str) -> str | None:
    """What follows the last "####" on its line, stripped; None without a marker or with nothing after it.

    >>> extract_answer("40 + 12 = 52\\n#### 52")
    '52'
    """
    _, marker, rest = text.rpartition(MARKER)
    answer = rest.split("\n", 1)[0].strip()
    return answer if marker and answer else None


def normalise(answer: str) -> str:
    """Canonical form: numbers without "$", thousands commas, leading or trailing zeros; other text casefolded, commas as spaces.

    >>> normalise("$1,234.50"), normalise("-0"), normalise("Yes."), normalise("3,  7, 12")
    ('1234.5', '0', 'yes', '3 7 12')
    """
    text = answer.replace("\u2212", "-").replace("$", "").strip()
    text = _TRAILING.sub("", text)
    match = _NUMBER.fullmatch(text)
    if match and (match[2] or match[3]):
        return _canonical_number(match[1], (match[2] or "0").replace(",", ""), match[3] or "")
    return " ".join(_items(text))


def is_correct(completion: str, answer: str) -> bool:
    """Whether the completion's marked answer equals the gold answer. "1,234" may be a number or a list: both readings are tried."""
    given = extract_answer(completion)
    if given is None:
        return False
    return normalise(given) == normalise(answer) or ("," in answer and _items(given) == _items(answer))


def reward(completion: str, answer: str) -> float:
    """1.0 for a right final answer, else 0.0 (the verifiable reward of RL)."""
    return 1.0 if is_correct(completion, answer) else 0.0


def _canonical_number(sign: str, whole: str, fraction: str) -> str:
    """String arithmetic on purpose: a rambling model may write a million digits, which int() refuses and Decimal crawls on."""
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    digits = f"{whole}.{fraction}" if fraction else whole
    return f"-{digits}" if sign == "-" and digits != "0" else digits


def _items(text: str) -> list[str]:
    return text.casefold().replace(",", " ").split()
