"""The README stays true: its tree is on disk, its make targets and modules exist, its links resolve."""

from __future__ import annotations

import re
import subprocess

from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


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
    modules = set(re.findall(r"python -m ([a-z_.]+)", README))
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
