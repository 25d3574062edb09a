"""stages/report.py: the whole page from finished outputs; deterministic, self-contained, honest about overflows."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from models.evaluation.statistics import mcnemar
from stages import report
from stages.config import StageError
from stages.context import Context
from tests.stages.reporting.finished import make_outputs, seal, varied_prepare_report, write_json

CONFIG = report.Config(title="Toy run", sample_answers=4, sample_characters=400, curve_points=50, export_margin=0.05)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def deps(tmp_path: Path) -> dict[str, Path]:
    return make_outputs(tmp_path / "deps")


def make(folder: Path, deps: dict[str, Path], cfg: report.Config = CONFIG) -> tuple[dict[str, float], str]:
    ctx = Context.for_test(folder, stage="report", deps=deps, seed=7)
    metrics = report.run(cfg, ctx)
    return metrics, (ctx.out / "report.html").read_text(encoding="utf-8")


def change_json(path: Path, **changes: object) -> None:
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | changes)


def test_metrics_are_what_the_records_say(tmp_path: Path, deps: dict[str, Path]) -> None:
    metrics, _ = make(tmp_path, deps)
    verdicts = {
        model: [
            json.loads(line)["correct"] for line in (deps[f"evaluate/{model}"] / "samples.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        for model in ("base", "sft", "rl", "bf16", "int8")
    }
    for model, flags in verdicts.items():
        assert metrics[f"accuracy_{model}"] == sum(flags) / len(flags)
    only_sft = sum(a and not b for a, b in zip(verdicts["sft"], verdicts["rl"], strict=True))
    only_rl = sum(b and not a for a, b in zip(verdicts["sft"], verdicts["rl"], strict=True))
    assert metrics["p_rl_over_sft"] == mcnemar(only_sft, only_rl)
    assert metrics["gain_rl_over_sft"] == pytest.approx(metrics["accuracy_rl"] - metrics["accuracy_sft"])
    assert metrics["int8_accuracy_drop"] == pytest.approx(metrics["accuracy_rl"] - metrics["accuracy_int8"])
    assert metrics["bpb_gain_over_unigram"] == pytest.approx(3.517 - 1.3372)
    assert all(math.isfinite(value) for value in metrics.values())


def test_same_inputs_give_the_same_bytes(tmp_path: Path, deps: dict[str, Path]) -> None:
    moved = shutil.copytree(tmp_path / "deps", tmp_path / "elsewhere")
    make(tmp_path / "a", deps)
    make(tmp_path / "b", {name: moved / path.relative_to(tmp_path / "deps") for name, path in deps.items()})
    files = sorted(path.name for path in (tmp_path / "a" / "out").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "b" / "out").iterdir()) and "report.html" in files
    for name in files:
        assert (tmp_path / "a" / "out" / name).read_bytes() == (tmp_path / "b" / "out" / name).read_bytes()


def test_page_is_self_contained_and_holds_no_path_or_date(tmp_path: Path, deps: dict[str, Path]) -> None:
    _, html = make(tmp_path, deps)
    assert not re.search(r"<(script|link|img|iframe|object|embed)\b|@import|url\(|https?://", html)
    assert str(tmp_path) not in html
    assert not re.search(r"\b20\d\d-\d\d-\d\d\b|\d\d:\d\d:\d\d", html)


def test_every_section_and_every_drawing_is_well_formed(tmp_path: Path, deps: dict[str, Path]) -> None:
    _, html = make(tmp_path, deps)
    assert re.findall(r'<section id="(\w+)"', html) == ["accuracy", "curves", "tasks", "exports", "answers", "data", "lineage"]
    drawings = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(drawings) > 12
    for drawing in drawings:
        assert ElementTree.fromstring(drawing).attrib["role"] == "img"
    assert "nan" not in re.sub(r"[a-z]*nan[a-z]+|[a-z]+nan", "", html.lower()) and ">inf" not in html


def test_mlf_03_overflows_are_named_and_no_number_stands_for_them(tmp_path: Path, deps: dict[str, Path]) -> None:
    change_json(deps["evaluate/base"] / "report.json", text={"bits_per_byte": 1.7976931348623157e308, "unigram_bits_per_byte": 3.517})
    change_json(deps["export/int8"] / "fidelity.json", ppl_ratio=math.inf, kl_mean=math.nan)
    curve = deps["pretrain"] / "curve.csv"
    lines = curve.read_text(encoding="utf-8").splitlines()
    curve.write_text("\n".join([*lines[:-1], "400,inf,0.003,nan"]) + "\n", encoding="utf-8")
    for name in ("evaluate/base", "export/int8", "pretrain"):
        seal(deps[name], name)
    metrics, html = make(tmp_path, deps)
    base_row = html.split('<th scope="row" class="words">base</th>')[1].split("</tr>")[0]
    assert base_row.endswith('<td class="number">overflow</td>')
    assert "train: 1 overflow of 400 values, first at update 400" in html
    shown = re.sub(r"\b[0-9a-f]{64}\b", "", html)  # a hash may hold any digits
    assert "e+308" not in shown and "e308" not in shown and "797693" not in shown
    assert metrics["bpb_gain_over_unigram"] == -math.inf  # the runner writes the word for it
    losses = (tmp_path / "out" / "pretrain_loss.csv").read_text(encoding="utf-8")
    assert len(losses.splitlines()) == 400 and "inf" not in losses


def test_an_evaluation_of_other_problems_stops_the_report(tmp_path: Path, deps: dict[str, Path]) -> None:
    path = deps["evaluate/rl"] / "samples.jsonl"
    path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]), encoding="utf-8")
    with pytest.raises(ValueError, match="different problems"):
        make(tmp_path, deps)


def test_an_undeclared_input_stops_the_report(tmp_path: Path, deps: dict[str, Path]) -> None:
    deps.pop("evaluate/sft")
    with pytest.raises(StageError, match="evaluate/sft"):
        make(tmp_path, deps)


def test_a_report_without_exports_or_samples(tmp_path: Path, deps: dict[str, Path]) -> None:
    kept = {name: path for name, path in deps.items() if not name.endswith(("bf16", "int8"))}
    metrics, html = make(tmp_path, kept, CONFIG.model_copy(update={"sample_answers": 0}))
    assert re.findall(r'<section id="(\w+)"', html) == ["accuracy", "curves", "tasks", "data", "lineage"]
    assert "int8_accuracy_drop" not in metrics


def test_parameters_of_every_stage_and_of_this_one_are_listed(tmp_path: Path, deps: dict[str, Path]) -> None:
    _, html = make(tmp_path, deps)
    for row in ("pretrain.peak_lr</th><td", "rl.clip</th><td", "report.title</th><td", "shared.seed</th><td"):
        assert row in html


def test_dry_run_names_the_models(tmp_path: Path, deps: dict[str, Path]) -> None:
    ctx = Context.for_test(tmp_path, stage="report", deps=deps)
    assert report.plan(CONFIG, ctx) == {"models": ["base", "sft", "rl", "bf16", "int8"]}


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine to lay the page out")
@pytest.mark.parametrize("width", [390, 1280])
def test_page_never_scrolls_sideways(tmp_path: Path, deps: dict[str, Path], width: int) -> None:
    """Long unbroken text, many columns, every table that sources can bring: boxes scroll, the page does not. Laid out in a frame
    of the given width."""
    write_json(deps["prepare"] / "report.json", varied_prepare_report())
    path = deps["evaluate/rl"] / "samples.jsonl"
    records = [json.loads(line) | {"completion": "x" * 900} for line in path.read_text(encoding="utf-8").splitlines()]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    make(tmp_path, deps)
    probe = tmp_path / "probe.html"
    measure = "const page = document.querySelector('iframe').contentDocument.documentElement; "
    measure += "document.title = `${page.scrollWidth} of ${page.clientWidth}`;"
    frame = f'<iframe src="out/report.html" style="border:0;width:{width}px;height:800px"></iframe>'
    probe.write_text(f"<body>{frame}<script>onload = () => {{{measure}}}</script>", encoding="utf-8")
    quiet = ["no-first-run", "disable-background-networking", "disable-component-update", "disable-sync", "hide-scrollbars"]
    flags = ["headless", "no-sandbox", "disable-gpu", *quiet, "allow-file-access-from-files", f"user-data-dir={tmp_path / 'profile'}"]
    command = [CHROMIUM, *(f"--{flag}" for flag in flags), "--virtual-time-budget=3000", "--dump-dom", probe.as_uri()]
    dumped = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    assert f"<title>{width} of {width}</title>" in dumped
