"""What is settled before the first stage: parameters, stale stages, environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from flows.plan import BadInput, child_env, compose, find_root, make_plan, stale_stages
from stages.identity import fingerprint
from tests.flows.project import Project


def test_root_is_the_folder_with_dvc_yaml(project: Project, tmp_path: Path) -> None:
    (project.root / "some/where").mkdir(parents=True, exist_ok=True)
    assert find_root(project.root / "some/where") == project.root
    with pytest.raises(BadInput, match="no dvc.yaml"):
        find_root(tmp_path)


def test_stale_stages_are_dvcs_own_answer(project: Project) -> None:
    assert stale_stages(project.root) == {"a", "b@x", "b@y", "flaky", "late", "end"}
    project.dvc("repro", "-s", "a")
    assert stale_stages(project.root) == {"b@x", "b@y", "flaky", "late", "end"}


def test_the_fingerprint_of_a_stage_exists_for_links(project: Project) -> None:
    assert len(fingerprint(project.root, "a")) == 64


def test_children_find_this_interpreter_first_and_keep_the_users_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    env = child_env(tmp_path, {"EXTRA": "1"})
    assert env["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert env["HF_HUB_OFFLINE"] == "0" and env["EXTRA"] == "1" and env["DVC_NO_ANALYTICS"] == "1"


def test_an_unknown_profile_or_key_is_bad_input_and_params_stay(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("as it was")
    for profile, overrides, text in (("no-such-profile", [], "no-such-profile"), (None, ["no.such.key=1"], "no.such.key")):
        with pytest.raises(BadInput, match=text):
            compose(tmp_path, profile, overrides)
    assert (tmp_path / "params.yaml").read_text() == "as it was"


def test_a_missing_params_file_is_bad_input(project: Project, tmp_path: Path) -> None:
    (tmp_path / "dvc.yaml").write_text((project.root / "dvc.yaml").read_text())
    with pytest.raises(BadInput, match="params.yaml does not exist"):
        make_plan(tmp_path, None, [], [])
