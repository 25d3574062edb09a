"""stages/exporting/checks.py: every kind of difference is found and named, without starting a process."""

import copy
import json

import pytest
import torch

from data.tokenizer import load_tokenizer
from stages.context import Context, Interrupted
from stages.exporting import checks
from tests.stages import toy_chain


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> checks.Expectation:
    tokens = toy_chain.tokenize_output(tmp_path_factory.mktemp("checks"))
    golden = json.loads((tokens / "golden.json").read_text())
    return checks.Expectation(
        model=toy_chain.toy_model(0), tokenizer=load_tokenizer(tokens / "tokenizer"), golden=golden, end_ids=[2, 0],
        rows=[golden["ids"][:8]], tolerance=1e-4)  # fmt: skip


@pytest.fixture
def result(expected) -> dict:
    """What a faultless fresh process reports."""
    return {
        "loading": {"missing_keys": [], "unexpected_keys": []},
        "text_ids": [expected.tokenizer(text)["input_ids"] for text in checks.TEXTS],
        "chat_ids": expected.golden["ids"], "prompt_ids": expected.golden["prompt_ids"],
        "end_ids": {"config.json": [2, 0], "generation_config.json": [2, 0], "tokenizer": 2},
        "forced_lengths": {"2": 3, "0": 3}, "greedy": True, "foreign_modules": [],
    }  # fmt: skip


def test_a_faultless_result_passes(result, expected):
    assert checks.tokenizer_faults(result, expected) + checks.ending_faults(result, [2, 0]) == []


def test_weights_must_be_the_rounding_bit_for_bit():
    weights = {"a": torch.ones(3), "b": torch.zeros(2)}
    checks.check_weights(weights, {name: value.clone() for name, value in weights.items()})
    with pytest.raises(RuntimeError, match=r"\['b'\]"):
        checks.check_weights(weights, {"a": torch.ones(3), "b": torch.tensor([0.0, 1e-12])})
    with pytest.raises(RuntimeError, match=r"\['a'\]"):
        checks.check_weights({"b": torch.zeros(2)}, weights)


@pytest.mark.parametrize("index", range(len(checks.TEXTS)))
def test_exp_05_each_text_is_compared(result, expected, index):
    """EXP-05: accents, digits, emoji with joiners, runs of spaces, tabs, code: another split of any of them is a fault."""
    result["text_ids"][index] = [*result["text_ids"][index], 7]
    [fault] = checks.tokenizer_faults(result, expected)
    assert repr(checks.TEXTS[index]) in fault


@pytest.mark.parametrize("kind", ["chat_ids", "prompt_ids"])
def test_sft_04_another_template_is_found(result, expected, kind):
    """SFT-04: the golden conversation through the exported template has the ids recorded before training."""
    result[kind] = [1, *result[kind]]
    assert checks.tokenizer_faults(result, expected) == [f"the golden conversation has other {kind} than recorded"]


@pytest.mark.parametrize(
    "place, value", [("config.json", 0), ("config.json", None), ("generation_config.json", [0]), ("tokenizer", 0), ("tokenizer", None)]
)
def test_exp_04_another_end_token_is_found(result, place, value):
    """EXP-04: model config, generation config and tokenizer name the same end tokens."""
    result["end_ids"][place] = value
    [fault] = checks.ending_faults(result, [2, 0])
    assert fault.startswith(f"{place} names end token {value}")


def test_exp_04_generation_that_runs_on_or_samples_is_found(result):
    broken = copy.deepcopy(result)
    broken["forced_lengths"]["2"] = 8
    broken["greedy"] = False
    assert checks.ending_faults(broken, [2, 0]) == [
        "a generation forced to end token 2 ran to 8 tokens, expected 3", "generation samples by default, expected greedy"]  # fmt: skip


@pytest.mark.slow
def test_a_folder_that_cannot_be_opened_shows_the_loaders_words(tmp_path, expected):
    ctx = Context.for_test(tmp_path, "export", {}, item="bf16")
    (ctx.out / "config.json").write_text("{")
    with pytest.raises(RuntimeError, match="(?s)cannot use the exported bf16 folder.*config.json.*is not a valid JSON file"):
        checks.reload_in_fresh_process(ctx, ctx.out, expected)


def test_a_stop_request_ends_the_fresh_process(tmp_path, expected):
    ctx = Context.for_test(tmp_path, "export", {}, item="bf16")
    ctx.stop_requested = lambda: True
    with pytest.raises(Interrupted, match="starts over"):
        checks.reload_in_fresh_process(ctx, ctx.out, expected)
