"""The README and docs/ stay true: the tree is on disk, make targets, modules and links exist, settings and examples are the code's."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from collections.abc import Mapping

import pytest
from pydantic_core import PydanticUndefined
from ruamel.yaml import YAML

from data.cleaning.policy import Cleaning, Contamination, NearDuplicates
from data.cleaning.rules import FAMILIES, LINE_RULES, PAGE_RULES
from data.formats.index import FORMATS, candidates, detect
from data.recipes.index import RECIPES
from stages.config import parse_section
from stages.prepare import Config, MixtureEntry
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
DATA = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
PARAMS = YAML(typ="safe").load((ROOT / "params.yaml").read_text(encoding="utf-8"))


def test_tree_is_on_disk() -> None:
    tree = README.split("## The tree")[1].split("```")[1]
    folders = [line.split()[0] for line in tree.strip().splitlines()]
    assert folders and all((ROOT / folder).is_dir() for folder in folders), folders
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    packages = {path.split("/")[0] + "/" for path in tracked if path.endswith(".py")}
    assert packages == set(folders), "the README's tree and the tracked packages differ"


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"make ([a-z]+(?:-[a-z]+)*)(?![-\w])", README))
    assert {"demo", "test", "ui", "help"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.M), f"README names `make {target}`, which the Makefile lacks"


def test_modules_named_in_commands_exist() -> None:
    modules = set(re.findall(r"python -m ([a-z_.]+)", README + DATA))
    assert modules
    for module in modules:
        assert (ROOT / (module.replace(".", "/") + ".py")).is_file(), f"README names {module}, which does not exist"


def test_parameters_named_in_commands_exist() -> None:
    params = (ROOT / "params.yaml").read_text(encoding="utf-8")
    for section, key in re.findall(r"\b(rl|sft|pretrain|prepare)\.([a-z_]+)=", README):
        assert re.search(rf"^{section}:\n(?:  .*\n)*  {key}:", params, re.M), f"README sets {section}.{key}, which params.yaml lacks"


def test_make_help_lists_every_target() -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("env", "demo", "test", "lint", "ui", "gpu-check", "clean", "bench-%"):
        assert re.search(rf"^{target}\s", listed, re.M), listed


@pytest.mark.parametrize("name", ["README.md", "docs/data.md", "data/raw/README.md"])
def test_links_resolve(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert ((ROOT / name).parent / target).is_file(), f"{name} links to {target}"


def test_every_page_of_docs_is_linked_from_the_readme() -> None:
    for path in (ROOT / "docs").glob("*.md"):
        assert f"](docs/{path.name})" in README, path.name


def blocks(text: str) -> list[dict]:
    return [YAML(typ="safe").load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]


def test_examples_are_accepted_as_they_stand() -> None:
    """Each replaces the keys it names; the others keep the values of params.yaml."""
    found = blocks(DATA)
    assert len(found) >= 4
    for block in found:
        assert block.keys() == {"prepare"}
        parse_section(Config, "prepare", {"prepare": {**PARAMS["prepare"], **block["prepare"]}})
    entries = {name: entry for block in found for name, entry in block["prepare"]["mixture"].items()}
    assert {entry["recipe"] for entry in entries.values()} == {"bucket", "hub", "local", "mds", "saved"}


def test_examples_beside_the_raw_files_are_accepted() -> None:
    [entries] = blocks((ROOT / "data" / "raw" / "README.md").read_text(encoding="utf-8"))
    parse_section(Config, "prepare", {"prepare": {**PARAMS["prepare"], "mixture": {**PARAMS["prepare"]["mixture"], **entries}}})


def rows(heading: str) -> list[list[str]]:
    """Cells of the table whose head is `heading`, without its two first lines."""
    lines = DATA.split(heading + "\n")[1].split("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines]


def told(cell: str) -> object:
    """A default as the page writes it."""
    return PydanticUndefined if cell == "required" else YAML(typ="safe").load(cell.strip("`"))


def defaults_of(cls: type) -> dict[str, object]:
    """Field -> default of a dataclass."""
    return {field.name: field.default if field.default is not dataclasses.MISSING else field.default_factory() if field.default_factory is not dataclasses.MISSING
            else PydanticUndefined for field in dataclasses.fields(cls)}


def test_every_key_of_an_entry_is_there_with_its_default() -> None:
    listed = {name.strip("`"): told(default) for name, default, _ in rows("| key | default | meaning |")}
    assert listed == {name: field.get_default(call_default_factory=True) for name, field in MixtureEntry.model_fields.items()}


def test_every_option_of_every_recipe_is_there_with_its_default() -> None:
    listed: dict[str, dict[str, object]] = {}
    for recipe, option, default, _ in rows("| recipe | option | default | meaning |"):
        listed.setdefault(recipe.strip("`") or list(listed)[-1], {})[option.strip("`")] = told(default)
    assert listed == {name: defaults_of(recipe) for name, recipe in RECIPES.items()}


def test_every_setting_of_cleaning_is_there_with_its_default() -> None:
    listed = {name.strip("`"): told(default) for name, default, _ in rows("| setting | default | what it does |")}
    expected = {name: default for name, default in defaults_of(Cleaning).items() if name not in ("near_duplicates", "contamination")}
    for name, cls in (("near_duplicates", NearDuplicates), ("contamination", Contamination)):
        expected |= {f"{name}.{field}": default for field, default in defaults_of(cls).items()}
    assert listed == expected


def test_every_rule_is_there_in_its_family() -> None:
    listed: dict[str, set[str]] = {}
    for names, _ in rows("| rule | drops a document when, or removes |"):
        found = re.findall(r"`(\w+)`", names)
        if names.startswith("**"):
            listed[found[0]] = set()
        else:
            listed[list(listed)[-1]].update(found)
    assert listed == {family: set(rules) for family, rules in FAMILIES.items()}
    assert set().union(*listed.values()) == {*PAGE_RULES, *LINE_RULES, "c4_citations"}


def test_every_format_is_there_with_a_record_that_is_detected() -> None:
    listed = [(name.strip("`"), kind, json.loads(re.search("`(.*?)`", example)[1])) for name, kind, example in rows("| format | kind | a record |")]
    assert {(name, kind) for name, kind, _ in listed} | {("gsm8k", "chat")} == {(form.name, form.kind) for form in FORMATS} | {("text", "text")}
    for name, kind, record in listed:
        form = detect([record], "auto", "auto")
        assert (form is None and kind == "text") or ((form.name, form.kind) == (name, kind) and form.convert(record)), name
    [gsm8k] = [record for name, _, record in listed if name == "gsm8k"]
    assert candidates("chat", "gsm8k")[0].convert(gsm8k)


def test_settings_named_in_full_exist() -> None:
    named = set(re.findall(r"`prepare\.([a-z_.]+)`", README + DATA))
    assert {"mixture", "text_tokens", "workers"} <= named
    for path in named:
        value: object = PARAMS["prepare"]
        for key in path.split("."):
            assert isinstance(value, Mapping) and key in value, f"prepare.{path} is not in params.yaml"
            value = value[key]
