"""Prompts with a checkable answer -> {"prompt", "answer", "verifier"}.

In: {prompt, answer} or GSM8K's {question, answer}, where the answer stands after the last "####" of its working. An answer that its own
verifier would not accept (several lines, nothing at all) makes the record unfit: no completion could ever be right.
"""

from __future__ import annotations

from collections.abc import Callable

from data.formats.misfit import Empty, Misfit, optional_text, text_field
from data.tasks.verify import MARKER, extract_answer, is_correct

VERIFIERS: dict[str, Callable[[str, str], bool]] = {"marked_answer": is_correct}
"""Name -> whether a completion is right, given the answer."""


def from_question(record: dict) -> dict[str, str]:
    """{"question", "answer": working, then "#### 42"}."""
    worked = text_field(record, "answer")
    answer = extract_answer(worked)
    if answer is None:
        raise Misfit(f"no answer after {MARKER}", f"(answer ends in {worked[-40:]!r})")
    return _prompt(text_field(record, "question"), answer, record)


def from_prompt(record: dict) -> dict[str, str]:
    """{"prompt", "answer", "verifier"?}; the answer may be a number."""
    answer = record.get("answer")
    number = isinstance(answer, int | float) and not isinstance(answer, bool)
    return _prompt(text_field(record, "prompt"), str(answer) if number else text_field(record, "answer").strip(), record)


def _prompt(prompt: str, answer: str, record: dict) -> dict[str, str]:
    if not prompt.strip():
        raise Empty("empty question")
    verifier = optional_text(record, "verifier") or "marked_answer"
    if verifier not in VERIFIERS:
        raise Misfit("unknown verifier", f"(got {verifier[:40]!r}, expected one of {', '.join(VERIFIERS)})")
    if not answer:
        raise Empty("empty answer")
    if not VERIFIERS[verifier](f"{MARKER} {answer}", answer):
        raise Misfit("an answer that its verifier rejects", f"(got {answer[:60]!r}; expected one line)")
    return {"prompt": prompt, "answer": answer, "verifier": verifier}
