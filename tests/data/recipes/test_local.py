"""A user's own files as a recipe."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from data.recipes.index import GENERATORS, LOCATIONS, RECIPES, find_recipe
from data.recipes.local import Local


def test_one_part_a_file_in_sorted_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).write_text(f"line 1 of {name}\nline 2")
    recipe = Local(paths=[f"{tmp_path}/*.txt"], format="auto", field=None, documents="line")
    parts = recipe.pieces()
    assert [Path(part[0]).name for part in parts] == ["a.txt", "b.txt"]
    assert [row.value["text"] for row in recipe.rows(parts[0])] == ["line 1 of a.txt", "line 2"]


def test_the_stamp_follows_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    recipe = Local(paths=[str(path)], format="text", field=None, documents="file")
    (part,) = recipe.pieces()
    first = recipe.stamp(part)
    assert recipe.stamp(part) == first
    path.write_text("two")
    os.utime(path, ns=(0, 0))
    assert recipe.stamp(part) != first


def test_plain_text_has_no_field_so_it_takes_the_named_one(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "record"}\n')
    (tmp_path / "b.md").write_text("page")
    recipe = Local(paths=[str(tmp_path)], field="body")
    assert [row.value for part in recipe.pieces() for row in recipe.rows(part)] == [{"body": "record"}, {"body": "page"}]


def test_a_missing_file_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no file matches"):
        Local(paths=[f"{tmp_path}/none.jsonl"], format="auto", field="text", documents="file").pieces()


def test_recipes_are_found_by_name() -> None:
    assert find_recipe("local") is Local
    with pytest.raises(ValueError, match="unknown recipe 'locl'; expected one of bucket, hub, local, mds, problems, saved, stdlib"):
        find_recipe("locl")
    assert all(hasattr(recipe, method) for recipe in GENERATORS.values() for method in ("parts", "stamp", "read"))
    assert all(hasattr(recipe, method) for recipe in LOCATIONS.values() for method in ("pieces", "stamp", "rows", "local_files", "version"))
    assert RECIPES == GENERATORS | LOCATIONS
