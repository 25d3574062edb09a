"""Settings as text: equal for equal settings, whatever the process (MLF-07)."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.tracking.values import MAX_PARAM, clean_key, describe
from tests.conftest import ROOT


@dataclass
class Pair:
    left: object
    right: object


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-4, "0.0001"), ("plain", "plain"), (True, "true"), (None, "null"), ([1, "b"], '[1, "b"]'), ({"b": 1, "a": {2, 1}}, '{"a": [1, 2], "b": 1}'),
        (Path("x") / "y", "x/y"), (Pair({"b", "a"}, Path("z")), '{"left": ["a", "b"], "right": "z"}'),
    ],
)  # fmt: skip
def test_describes_values_by_content(value: object, text: str) -> None:
    assert describe(value) == text


def test_mlf07_two_processes_describe_a_callable_a_set_and_a_path_alike() -> None:
    code = "from pathlib import Path; from stages.tracking.values import describe; print(describe({'f': describe, 'o': object(), 's': {'b', 'a', 'c'}, 'p': Path('d/e')}))"
    texts = {subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True).stdout for seed in "123"}
    assert texts == {'{"f": "stages.tracking.values.describe", "o": "builtins.object", "p": "d/e", "s": ["a", "b", "c"]}\n'}


def test_long_values_are_cut_visibly() -> None:
    text = describe("x" * (MAX_PARAM + 1))
    assert len(text) == MAX_PARAM and text.endswith("…")


@given(st.text())
def test_keys_hold_only_what_mlflow_accepts(name: str) -> None:
    key = clean_key(name)
    assert len(key) <= 250 and all(char.isalnum() or char in "_-. :/" for char in key)
    assert clean_key(key) == key


def test_keys_that_are_fine_stay() -> None:
    assert clean_key("greedy_accuracy.add/sub") == "greedy_accuracy.add/sub"
