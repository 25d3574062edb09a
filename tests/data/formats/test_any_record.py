"""Whatever a record holds, a format gives a renderable form, or says that it is empty or unfit; nothing else happens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.chat import render
from data.formats.index import FORMATS, Format, detect
from data.formats.misfit import Empty, Misfit
from data.formats.prompts import VERIFIERS

TEXT = st.sampled_from(["", " ", "q", "a\nb", "<think>x</think>y", "#### 4", "w\n#### 4", "[]", '[{"role": "user", "content": "c"}]', "{", "\ud800"])
SCALAR = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=True) | TEXT
ROLE = st.sampled_from(["system", "user", "assistant", "tool", "human", "gpt", "function_call", "observation", "narrator"]) | SCALAR | st.just([]) | st.just({})
CALL = st.fixed_dictionaries({}, optional={"name": SCALAR | st.just([]), "arguments": SCALAR | st.dictionaries(TEXT, SCALAR, max_size=2), "function": SCALAR})
TURN = st.fixed_dictionaries({}, optional={
    "role": ROLE, "from": ROLE, "content": SCALAR | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": SCALAR}), max_size=2), "value": TEXT,
    "tool_calls": SCALAR | st.lists(CALL | st.fixed_dictionaries({"function": CALL}), max_size=2), "function_call": SCALAR | CALL, "reasoning_content": SCALAR | st.just([]), "weight": SCALAR | st.just({})})
GOOD = st.builds(lambda q, a: [{"role": "user", "content": q}, {"role": "assistant", "content": a}], TEXT, TEXT)
VALUE = SCALAR | st.lists(TURN | SCALAR | st.lists(TEXT, max_size=3), max_size=4) | GOOD | TURN
FIELDS = sorted(frozenset().union(*(form.fields for form in FORMATS)))
RECORD = st.fixed_dictionaries({}, optional={name: VALUE for name in FIELDS})


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: f"{form.name}-{form.kind}")
@settings(max_examples=60)
@given(st.data())
def test_a_form_or_a_reason(form: Format, data: st.DataObject) -> None:
    record = data.draw(st.fixed_dictionaries({}, optional={name: VALUE for name in sorted(form.fields)}))
    try:
        made = form.convert(record)
    except Empty:
        return
    except Misfit as misfit:
        assert misfit.fault.reason and len(misfit.fault.reason) < 100
        return
    if form.kind == "prompts":
        assert VERIFIERS[made["verifier"]](f"so\n#### {made['answer']}", made["answer"]) and made["prompt"].strip()
    elif form.kind == "chat" or "label" in made:
        assert render(made["messages"]) and isinstance(made.get("label", True), bool)
    else:
        assert all(render([*made["prompt_messages"], {"role": "assistant", "content": made[name]}]) for name in ("chosen", "rejected"))


@settings(max_examples=50)
@given(st.lists(RECORD, min_size=1, max_size=3))
def test_detection_never_breaks(records: list[dict]) -> None:
    try:
        form = detect(records, "auto", "auto")
    except ValueError as error:
        assert "cannot tell the format" in str(error)
    else:
        assert form is None or sum(map(form.fits, records)) * 2 >= len(records)
