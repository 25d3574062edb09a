"""stages/reporting/inputs.py: reading other stages' outputs; what is missing is an error that names it, what overflowed is inf."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from stages.config import StageError
from stages.reporting import inputs
from tests.stages.reporting.finished import make_outputs, write_json


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    return make_outputs(tmp_path, problems=10)


def edit(path: Path, change) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    write_json(path, content)


def test_corpus_counts(folders: dict[str, Path]) -> None:
    corpus = inputs.read_corpus(folders["prepare"], folders["tokenize"])
    assert [source.name for source in corpus.sources] == ["notes", "problems", "stdlib"]
    assert corpus.sources[2].records == corpus.sources[2].kept + sum(corpus.sources[2].dropped.values())
    assert corpus.unigram_bpb == {"val": 3.481, "test": 3.517}
    rows = {(split.kind, split.split): split for split in corpus.splits}
    assert len(rows) == 9
    assert rows[("chats", "train")].repeats == 41 and rows[("text documents", "train")].repeats is None
    assert corpus.interpreter.startswith("CPython 3.11.7, 390 files")


def test_corpus_without_the_standard_library(folders: dict[str, Path]) -> None:
    edit(folders["prepare"] / "report.json", lambda content: content.update(interpreter=None))
    assert inputs.read_corpus(folders["prepare"], folders["tokenize"]).interpreter == ""


def test_a_missing_key_is_named_with_its_file(folders: dict[str, Path]) -> None:
    edit(folders["prepare"] / "report.json", lambda content: content["text"].pop("sources"))
    with pytest.raises(StageError, match=r"prepare/report\.json has no 'text\.sources'"):
        inputs.read_corpus(folders["prepare"], folders["tokenize"])


@pytest.mark.parametrize(("text", "message"), [("{", "is not JSON"), ("[1]", "holds list"), (None, "does not exist")])
def test_an_unreadable_report_is_refused(folders: dict[str, Path], text: str | None, message: str) -> None:
    path = folders["export/int8"] / "fidelity.json"
    path.unlink() if text is None else path.write_text(text, encoding="utf-8")
    with pytest.raises(StageError, match=message):
        inputs.read_export("int8", folders["export/int8"])


def test_mlf_03_overflowed_fidelity_is_infinite_and_a_missing_one_is_nan(folders: dict[str, Path]) -> None:
    def change(content: dict) -> None:
        content.update(ppl_ratio=1.7976931348623157e308, kl_p99="overflow", kl_mean=math.inf)
        content.pop("top1_agreement")

    edit(folders["export/int8"] / "fidelity.json", change)
    found = inputs.read_export("int8", folders["export/int8"])
    assert found.ppl_ratio == found.kl_p99 == found.kl_mean == math.inf
    assert math.isnan(found.top1)
    assert found.bits_per_weight == 8.98


def test_evaluation_records_and_shares(folders: dict[str, Path]) -> None:
    found = inputs.read_evaluation("sft", folders["evaluate/sft"])
    assert len(found.records) == 10 and found.too_long == 3 and found.unigram_bpb == 3.517
    right = sum(record["correct"] for record in found.records)
    assert found.sampled_accuracy == pytest.approx(right * 0.75 / 10)
    assert found.share("answered") == 1.0
    assert math.isnan(found.share("no such flag"))


def test_nothing_sampled_is_not_available_rather_than_zero(folders: dict[str, Path]) -> None:
    path = folders["evaluate/sft"] / "samples.jsonl"
    records = [json.loads(line) | {"n": 0, "c": 0} for line in path.read_text(encoding="utf-8").splitlines()]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    assert math.isnan(inputs.read_evaluation("sft", folders["evaluate/sft"]).sampled_accuracy)


def test_broken_records_are_named(folders: dict[str, Path]) -> None:
    path = folders["evaluate/sft"] / "samples.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    record = json.loads(lines[1])
    record.pop("completion")
    path.write_text("\n".join([lines[0], json.dumps(record)]) + "\n", encoding="utf-8")
    with pytest.raises(StageError, match=r"line 2 lacks \['completion'\]"):
        inputs.read_evaluation("sft", folders["evaluate/sft"])
    path.write_text("", encoding="utf-8")
    with pytest.raises(StageError, match="is empty"):
        inputs.read_evaluation("sft", folders["evaluate/sft"])


def test_evaluations_under_other_settings_are_refused(folders: dict[str, Path]) -> None:
    edit(folders["evaluate/rl"] / "report.json", lambda content: content["identity"].update(evaluation="f" * 64))
    evaluations = {model: inputs.read_evaluation(model, folders[f"evaluate/{model}"]) for model in ("base", "rl")}
    with pytest.raises(StageError, match="evaluations of rl used other settings"):
        inputs.check_comparable(evaluations)
    inputs.check_comparable({"base": evaluations["base"]})


def test_parameters_are_counted_from_the_weights(folders: dict[str, Path]) -> None:
    assert inputs.count_parameters(folders["rl"] / "model" / "model.safetensors") == 300 * 64 + 64
