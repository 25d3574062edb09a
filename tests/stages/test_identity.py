"""The fingerprint moves with what a stage depends on and with nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.config import StageError
from stages.identity import declared_stages, fingerprint

DVC_YAML = """
stages:
  one: {cmd: python -m one, params: [shared, one], deps: [code], outs: [data/out/one]}
  two:
    matrix: {format: [bf16, int8]}
    cmd: python -m two --item ${item.format}
    params: [shared, two]
    deps: [data/out/one]
    outs: ["data/out/two/${item.format}": {persist: false}]
  three:
    foreach: {left: one, right: two/bf16}
    do: {cmd: "python -m three --item ${key}", params: [shared, three], deps: ["data/out/${item}"], outs: ["data/out/three/${key}"]}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "dvc.yaml").write_text(DVC_YAML)
    (tmp_path / "params.yaml").write_text("shared: {seed: 1}\none: {a: 1}\ntwo: {b: 2}\nthree: {}\n")
    (tmp_path / "code").mkdir()
    (tmp_path / "code/a.py").write_text("x = 1\n")
    return tmp_path


def test_matrix_and_foreach_are_expanded(project: Path) -> None:
    stages = declared_stages(project)
    assert list(stages) == ["one", "two@bf16", "two@int8", "three@left", "three@right"]
    assert stages["two@int8"].command == "python -m two --item int8" and stages["two@int8"].outs == ("data/out/two/int8",)
    assert stages["three@right"].deps == ("data/out/two/bf16",)


def test_fingerprint_moves_with_params_and_code_only(project: Path) -> None:
    first = fingerprint(project, "one")
    (project / "params.yaml").write_text("shared: {seed: 1}\none: {a: 1}\ntwo: {b: 99}\nthree: {}\n")
    (project / "unrelated.py").write_text("")
    (project / "code/__pycache__").mkdir()
    (project / "code/__pycache__/a.pyc").write_text("cache")
    assert fingerprint(project, "one") == first
    (project / "code/a.py").write_text("x = 2\n")
    edited = fingerprint(project, "one")
    assert edited != first
    (project / "params.yaml").write_text("shared: {seed: 1}\none: {a: 2}\ntwo: {b: 99}\nthree: {}\n")
    assert fingerprint(project, "one") not in (first, edited)


def test_missing_upstream_and_unknown_stage_are_refused(project: Path) -> None:
    with pytest.raises(StageError, match="dependency .*data/out/one does not exist"):
        fingerprint(project, "two", "bf16")
    with pytest.raises(StageError, match="declares no stage 'two@fp8'; expected one of one, two@bf16"):
        fingerprint(project, "two", "fp8")


def test_a_broken_pipeline_file_is_named(project: Path) -> None:
    for text in ("stages: [a\n", "metrics: []\n", "- a\n"):
        (project / "dvc.yaml").write_text(text)
        with pytest.raises(StageError, match="dvc.yaml is (no pipeline|not valid YAML)"):
            declared_stages(project)
