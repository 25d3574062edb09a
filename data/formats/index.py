"""The record formats there are, and which one a source has.

In: a source's first records, and what its entry says. Out: one Format: its name, its kind (chat, preference or prompts), the
fields it reads and the conversion to the kind's one form. Text is no format: it is the field that holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from data.formats import chat, preference, prompts
from data.tasks.verify import MARKER

SAMPLE = 20
"""Records looked at to tell a format."""
KINDS = ("text", "chat", "preference", "prompts")


@dataclass(frozen=True, slots=True)
class Format:
    """One shape of record."""

    name: str
    kind: str
    fits: Callable[[dict], bool]
    """Whether a record looks like it: by the names and types of its fields alone."""
    convert: Callable[[dict], dict]
    """A record in the kind's form. Misfit or Empty when it has none."""
    fields: frozenset[str]
    """What it reads; other fields of a record are counted as unused."""

    def __reduce__(self) -> tuple[Callable[[str, str], Format], tuple[str, str]]:
        """Sent to another process by name."""
        return find_format, (self.name, self.kind)


def _has(record: dict, **types: type | tuple[type, ...]) -> bool:
    return all(isinstance(record.get(name), expected) for name, expected in types.items())


def _turns(record: dict, name: str) -> bool:
    """A list of turns, or a table's cell that holds one as JSON."""
    value = record.get(name)
    return isinstance(value, list) or (isinstance(value, str) and value.lstrip().startswith("[{"))


def _asked(record: dict) -> bool:
    return any(isinstance(record.get(name), str) for name in ("prompt", "question", "instruction"))


def _format(name: str, kind: str, convert: Callable[[dict], dict], fields: str, fits: Callable[[dict], bool]) -> Format:
    return Format(name, kind, fits, convert, frozenset(fields.split()))


FORMATS = (  # the first that fits is taken, so the more particular ones stand first
    _format("kto", "preference", preference.from_kto, "messages conversations label tools system",
            lambda r: _has(r, label=bool) and (_turns(r, "messages") or _turns(r, "conversations"))),
    _format("kto_texts", "preference", preference.from_kto_texts, "prompt completion label system", lambda r: _has(r, prompt=str, completion=str, label=bool)),
    _format("sharegpt_preference", "preference", preference.from_sharegpt, "conversations chosen rejected tools system",
            lambda r: _turns(r, "conversations") and _has(r, chosen=(dict, str, list), rejected=(dict, str, list))),
    _format("preference_messages", "preference", preference.from_message_lists, "prompt chosen rejected tools system",
            lambda r: _turns(r, "chosen") and _turns(r, "rejected")),
    _format("preference_texts", "preference", preference.from_texts, "prompt question instruction input chosen rejected tools system",
            lambda r: _has(r, chosen=str, rejected=str) and _asked(r)),
    _format("messages", "chat", chat.from_messages, "messages tools", lambda r: _turns(r, "messages")),
    _format("sharegpt", "chat", chat.from_sharegpt, "conversations tools system", lambda r: _turns(r, "conversations")),
    _format("alpaca", "chat", chat.from_alpaca, "instruction input output system history tools", lambda r: _has(r, instruction=str, output=str)),
    _format("gsm8k", "prompts", prompts.from_question, "question answer verifier", lambda r: _has(r, question=str, answer=str) and MARKER in r["answer"]),
    _format("gsm8k", "chat", chat.from_worked_answer, "question answer", lambda r: _has(r, question=str, answer=str)),
    _format("prompts", "prompts", prompts.from_prompt, "prompt answer verifier", lambda r: _has(r, prompt=str, answer=(str, int, float))),
)


def find_format(name: str, kind: str) -> Format:
    """The format of that name and kind."""
    return next(form for form in FORMATS if (form.name, form.kind) == (name, kind))


NAMES = tuple(dict.fromkeys(form.name for form in FORMATS))


def rename(record: dict, fields: Mapping[str, str]) -> dict:
    """The record under the names that formats use. fields: our name -> the record's."""
    if not fields:
        return record
    theirs = {old: new for new, old in fields.items()}
    kept = {name: value for name, value in record.items() if name not in fields or name in theirs}  # a field of our name gives way to the named one
    return {theirs.get(name, name): value for name, value in kept.items()}


def candidates(kind: str, name: str) -> list[Format]:
    """The formats that an entry leaves open; "auto" stands for any. ValueError when it names what does not exist."""
    found = [form for form in FORMATS if kind in ("auto", form.kind) and name in ("auto", form.name)]
    if not found:
        known = ", ".join(sorted({form.name for form in FORMATS if kind in ("auto", form.kind)}))
        raise ValueError(f"no format '{name}' of kind {kind}; expected one of {known}")
    return found


def detect(records: Sequence[dict], kind: str, name: str) -> Format | None:
    """The format of a source, or None when its records are text: those with a text field `text` and no other known shape.

    records: the first ones, renamed. kind, name: what the entry says, or "auto". The format that most of the records fit is taken,
    the first of equals. ValueError when fewer than half fit any.
    """
    named = candidates(kind, name)
    if len(named) == 1:
        return named[0]
    counts = [sum(map(form.fits, records)) for form in named]
    best = max(range(len(named)), key=lambda i: (counts[i], -i))
    if counts[best] and 2 * counts[best] >= len(records):
        return named[best]
    if kind == "auto" and name == "auto" and 2 * sum(isinstance(record.get("text"), str) for record in records) >= len(records):
        return None
    fields = sorted({str(name) for record in records for name in record})
    raise ValueError(f"cannot tell the format of records with the fields {', '.join(fields) or 'none'}; name the text's field (`fields: {{text: ...}}`), or "
                     f"`record_format` (one of {', '.join(NAMES)}) with `fields` to say which of its fields is which")
