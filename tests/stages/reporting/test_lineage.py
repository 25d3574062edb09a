"""stages/reporting/lineage.py and provenance.py: commit and dirty flag, hashes, the parameters results were made with."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from stages.config import StageError
from stages.reporting import lineage, provenance
from tests.stages.reporting.finished import make_outputs, write_json


def git(root: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words], cwd=root, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "code.py").write_text("x = 1\n", encoding="utf-8")
    (tmp_path / "dvc.lock").write_text("a\n", encoding="utf-8")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_commit_is_reported_clean_then_dirty(repository: Path) -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=repository, check=True, capture_output=True, text=True).stdout.strip()
    assert lineage.code_state(repository) == lineage.CodeState(head, False)
    (repository / "code.py").write_text("x = 2\n", encoding="utf-8")
    assert lineage.code_state(repository) == lineage.CodeState(head, True)


def test_a_new_source_file_is_a_change(repository: Path) -> None:
    (repository / "new.py").write_text("", encoding="utf-8")
    assert lineage.code_state(repository).dirty


def test_files_that_the_pipeline_writes_are_no_change_of_code(repository: Path) -> None:
    (repository / "dvc.lock").write_text("b\n", encoding="utf-8")
    (repository / "metrics").mkdir()
    (repository / "metrics" / "sft.json").write_text("{}\n", encoding="utf-8")
    assert not lineage.code_state(repository).dirty


def test_no_repository_is_said_and_not_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert lineage.code_state(tmp_path) == lineage.CodeState(None, False)
    assert "not in a Git commit" in provenance.section(lineage.CodeState(None, False), [], {}, [], "").body


def test_dirty_code_is_a_warning_on_the_page() -> None:
    assert "uncommitted changes: the commit alone" in provenance.section(lineage.CodeState("abc", True), [], {}, [], "").body
    assert "warning" not in provenance.section(lineage.CodeState("abc", False), [], {}, [], "").body


def test_origins_hash_the_manifest_and_count_its_files(tmp_path: Path) -> None:
    folders = make_outputs(tmp_path, problems=5)
    found = {origin.name: origin for origin in lineage.origins(folders)}
    assert list(found) == list(folders)
    manifest = folders["sft"] / "manifest.json"
    assert found["sft"].sha256 == hashlib.sha256(manifest.read_bytes()).hexdigest()
    assert found["sft"].num_files == 3
    assert found["sft"].num_bytes == sum(file.stat().st_size for file in folders["sft"].rglob("*") if file.is_file() and file != manifest)


def test_parameters_come_from_the_manifests_with_dotted_names(tmp_path: Path) -> None:
    found = lineage.parameters(make_outputs(tmp_path, problems=5))
    assert lineage.Parameter("pretrain.model.num_layers", ("2",)) in found["pretrain"]
    assert lineage.Parameter("rl.clip", ("[0.2, 0.28]",)) in found["rl"]
    assert lineage.Parameter("shared.profile", ("toy",)) in found["shared"]
    assert list(found) == ["shared", "pretrain", "sft", "rl"]


def test_outputs_made_with_different_values_are_named(tmp_path: Path) -> None:
    folders = make_outputs(tmp_path, problems=5)
    path = folders["rl"] / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["params"]["shared"]["seed"] = 99
    write_json(path, manifest)
    found = lineage.parameters(folders)
    assert lineage.Parameter("shared.seed", ("17", "99")) in found["shared"]
    assert "made with different values of shared.seed" in provenance.section(lineage.CodeState("abc", False), [], found, [], "").body


@pytest.mark.parametrize(
    ("break_it", "message"),
    [(lambda path: path.unlink(), "no manifest.json"), (lambda path: write_json(path, {"files": {}}), r"lacks \['params'\]")],
)
def test_an_unfinished_input_is_refused(tmp_path: Path, break_it, message: str) -> None:
    folders = make_outputs(tmp_path, problems=5)
    break_it(folders["sft"] / "manifest.json")
    with pytest.raises(StageError, match=message):
        lineage.origins(folders)


def test_software_names_the_interpreter_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "PACKAGES", ("numpy", "no-such-package"))
    found = lineage.software()
    assert found[0][0] == "CPython" and found[1][0] == "numpy" and found[1][1][0].isdigit()
    assert found[2] == ("no-such-package", "not available")
