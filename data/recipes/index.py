"""The recipes there are, by name. To add one: a file with a small class (recipe.py says which methods) and a line here."""

from __future__ import annotations

from data.recipes.local import Local
from data.recipes.problems import Problems
from data.recipes.recipe import Recipe
from data.recipes.stdlib import Stdlib

RECIPES: dict[str, type[Recipe]] = {"local": Local, "problems": Problems, "stdlib": Stdlib}


def find_recipe(name: str) -> type[Recipe]:
    """The recipe class called `name`; ValueError lists the names there are."""
    if name not in RECIPES:
        raise ValueError(f"unknown recipe '{name}'; expected one of {', '.join(sorted(RECIPES))}")
    return RECIPES[name]
