"""The recipes there are, by name. To add one: a file with a small class (recipe.py says which methods) and a line here."""

from __future__ import annotations

from data.recipes.bucket import Bucket
from data.recipes.hub import Hub
from data.recipes.local import Local
from data.recipes.mds import Mds
from data.recipes.problems import Problems
from data.recipes.recipe import Location, Recipe
from data.recipes.saved import Saved
from data.recipes.stdlib import Stdlib

GENERATORS: dict[str, type[Recipe]] = {"problems": Problems, "stdlib": Stdlib}
"""Recipes that make documents."""
LOCATIONS: dict[str, type[Location]] = {"bucket": Bucket, "hub": Hub, "local": Local, "mds": Mds, "saved": Saved}
"""Places that hold records of any kind."""
RECIPES: dict[str, type[Recipe] | type[Location]] = {**GENERATORS, **LOCATIONS}


def find_recipe(name: str) -> type[Recipe] | type[Location]:
    """The recipe class called `name`; ValueError lists the names there are."""
    if name not in RECIPES:
        raise ValueError(f"unknown recipe '{name}'; expected one of {', '.join(sorted(RECIPES))}")
    return RECIPES[name]
