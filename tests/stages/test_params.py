"""params.yaml is the composed nano, and composition refuses what it cannot honour."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.config import StageError
from stages.params import compose_params, edited_keys, profiles, write_params
from tests.conftest import ROOT


def test_committed_params_are_the_composed_default() -> None:
    assert (ROOT / "params.yaml").read_text() == compose_params(None, []) == compose_params("nano", [])


@pytest.mark.parametrize("profile", profiles())
def test_every_profile_names_itself_and_has_the_same_keys(profile: str, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    write_params(path, compose_params(profile, []))
    assert f"profile: {profile}" in path.read_text()
    assert edited_keys(path) == []


def test_override_changes_one_key(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    write_params(path, compose_params("smoke", ["rl.lr=1e-5"]))
    assert edited_keys(path) == ["rl.lr"]


@pytest.mark.parametrize(("profile", "override", "expected"), [
    ("huge", None, "profile 'huge' does not exist; expected one of"),
    (None, "rl.lrr=1", "rl.lrr"),
    (None, "rl.lr", "rl.lr"),
])
def test_bad_composition_is_refused(profile: str | None, override: str | None, expected: str) -> None:
    with pytest.raises(StageError, match=expected):
        compose_params(profile, [override] if override else [])


def test_unchanged_params_file_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    assert write_params(path, "a: 1\n") is True
    before = path.stat().st_mtime_ns
    assert write_params(path, "a: 1\n") is False
    assert path.stat().st_mtime_ns == before
