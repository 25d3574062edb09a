"""dvc.yaml says what each stage truly reads: its code is the import closure, its params are its Config, its outputs are its own."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from stages.identity import Declared, declared_stages
from tests.conftest import ROOT
from tests.test_layering import imports

# Where and how a stage runs, never what it computes; stated in dvc.yaml's head and in the README.
PLUMBING = ("infra/", "stages/runner.py", "stages/tracking/", "stages/config.py", "stages/context.py", "stages/identity.py", "stages/params.py", "stages/atomic.py", "stages/device.py", "stages/showing.py")
STAGES = declared_stages(ROOT)


def module_file(dotted: str) -> Path | None:
    base = ROOT / Path(*dotted.split("."))
    if base.with_suffix(".py").is_file():
        return base.with_suffix(".py")
    return base / "__init__.py" if (base / "__init__.py").is_file() else None


def closure(start: Path) -> set[str]:
    """Project files that importing `start` runs, as posix paths; plumbing is passed over and not followed."""
    seen: set[str] = set()
    todo = [start]
    while todo:
        path = todo.pop()
        name = path.relative_to(ROOT).as_posix()
        if name in seen or name.startswith(PLUMBING):
            continue
        seen.add(name)
        for dotted in imports(path):
            parts = dotted.split(".")
            if parts[0] in ("stages", "models", "data"):
                todo += [file for end in range(2, len(parts) + 1) if (file := module_file(".".join(parts[:end])))]
    return seen


def covered(file: str, deps: tuple[str, ...]) -> bool:
    return any(file == dep or file.startswith(dep + "/") for dep in deps)


@pytest.mark.parametrize("declared", STAGES.values(), ids=STAGES)
def test_code_deps_are_the_import_closure(declared: Declared) -> None:
    files = closure(ROOT / "stages" / f"{declared.name}.py")
    code = tuple(dep for dep in declared.deps if not dep.startswith("data/out/") and dep not in ("data/interpreter.json", "data/raw"))
    missing = sorted(file for file in files if not covered(file, code))
    assert not missing, f"{declared.label} imports {missing}, which its deps in dvc.yaml do not name"
    unused = [dep for dep in code if not any(covered(file, (dep,)) for file in files)]
    assert not unused, f"{declared.label} declares {unused}, which it does not import"


@pytest.mark.parametrize("declared", STAGES.values(), ids=STAGES)
def test_params_section_is_the_config(declared: Declared) -> None:
    """DVC-03: every key of the section is a field of Config and the other way round, at every level."""
    assert set(declared.params) == {"shared", declared.name}
    config = importlib.import_module(f"stages.{declared.name}").Config
    section = YAML(typ="safe").load((ROOT / "params.yaml").read_text())[declared.name]
    assert set(section) == set(config.model_fields)
    config.model_validate(section)
    for name, field in config.model_fields.items():
        assert field.is_required(), f"{declared.name}.{name} has a default in code; a missing key must be an error"


@pytest.mark.parametrize("declared", STAGES.values(), ids=STAGES)
def test_outputs_and_upstream(declared: Declared) -> None:
    assert declared.outs == (f"data/out/{declared.label.replace('@', '/')}",)
    made = {out for stage in STAGES.values() for out in stage.outs}
    read = {dep for dep in declared.deps if dep.startswith("data/out/")}
    assert read <= made, f"{declared.label} reads {sorted(read - made)}, which no stage makes"


def test_an_edit_in_rl_does_not_retrain_the_base_but_an_optimizer_edit_does() -> None:
    assert not any(covered("models/rl/advantages.py", STAGES[name].deps) for name in ("prepare", "tokenize", "pretrain", "sft"))
    assert all(covered("models/optimizers/schedules.py", STAGES[name].deps) for name in ("pretrain", "sft", "rl"))
