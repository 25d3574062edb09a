"""A user's own files as a recipe."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from data.problems import ProblemSource
from data.recipes.index import RECIPES, find_recipe
from data.recipes.local import Local
from data.recipes.recipe import Scope

SCOPE = Scope(target_bytes=1, problems=ProblemSource(seed=0, tasks={}, val_fraction=0.1, test_fraction=0.1))


def test_one_part_a_file_in_sorted_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).write_text(f"line 1 of {name}\nline 2")
    recipe = Local(paths=[f"{tmp_path}/*.txt"], format="auto", field=None, documents="line")
    parts = recipe.parts(SCOPE)
    assert [Path(part[0]).name for part in parts] == ["a.txt", "b.txt"]
    assert [record.text for record in recipe.read(parts[0], SCOPE)] == ["line 1 of a.txt", "line 2"]


def test_the_stamp_follows_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    recipe = Local(paths=[str(path)], format="text", field=None, documents="file")
    (part,) = recipe.parts(SCOPE)
    first = recipe.stamp(part)
    assert recipe.stamp(part) == first
    path.write_text("two")
    os.utime(path, ns=(0, 0))
    assert recipe.stamp(part) != first


def test_a_missing_file_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no file matches"):
        Local(paths=[f"{tmp_path}/none.jsonl"], format="auto", field="text", documents="file").parts(SCOPE)


def test_recipes_are_found_by_name() -> None:
    assert find_recipe("local") is Local
    with pytest.raises(ValueError, match="unknown recipe 'locl'; expected one of local, problems, stdlib"):
        find_recipe("locl")
    assert all(hasattr(recipe, method) for recipe in RECIPES.values() for method in ("parts", "stamp", "read"))
