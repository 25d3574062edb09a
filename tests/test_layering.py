"""Imports run one way: flows -> stages -> {models, data}; heavy libraries have one home; nothing works at import."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import ROOT

ALLOWED = {
    "flows": {"flows", "stages", "infra"},
    "stages": {"stages", "models", "data", "infra"},
    "models": {"models"},
    "data": {"data"},
    "infra": {"infra"},
}
HOMES = {  # library -> where it may be imported
    "mlflow": ("stages/tracking/",),
    "prefect": ("flows/",),
    "deepspeed": ("stages/engine.py",),
    "streaming": ("data/",),
    "transformers": ("models/interop.py", "data/", "stages/"),  # in stages: the tokenizer's type
    "hydra": ("stages/params.py",),
    "dvc": (),
}
LATE_IMPORTS = {  # inner imports with a reason: slow, or optional on some machines
    ("data/pool.py", "distributed"),
    ("data/recipes/hub.py", "datasets"),
    ("data/recipes/hub.py", "huggingface_hub"),
    ("data/recipes/mds.py", "streaming.base.compression"),
    ("data/recipes/mds.py", "streaming.base.format"),
    ("data/tokenizer.py", "transformers"),
    ("data/tasks/reasoning_gym.py", "reasoning_gym"),
    ("models/optimizers/adamw_8bit.py", "torchao.optim"),
    ("models/optimizers/adamw_8bit.py", "torchao.optim.subclass_8bit"),
    ("flows/pipeline.py", "flows.chain"),
    ("flows/schedule.py", "flows.deployments"),
}


def sources() -> list[Path]:
    """Every module of the project; data/out and data/work are results, not code."""
    found = sorted(path for package in ALLOWED for path in (ROOT / package).rglob("*.py") if path.relative_to(ROOT).parts[1] not in ("out", "work"))
    assert len(found) > 50, f"only {len(found)} modules found under {ROOT}"
    return found


def imports(path: Path) -> list[str]:
    """Dotted names of everything the file imports, at the top or inside a function."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the full name"
            found += [node.module] + [f"{node.module}.{alias.name}" for alias in node.names]
    return found


@pytest.mark.parametrize("path", sources(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_direction_and_homes(path: Path) -> None:
    relative = path.relative_to(ROOT).as_posix()
    package = relative.split("/")[0]
    for module in imports(path):
        top = module.split(".")[0]
        if top in ALLOWED:
            assert top in ALLOWED[package], f"{relative} imports {module}, but {package} may import only {sorted(ALLOWED[package])}"
        if top in HOMES:
            assert relative.startswith(HOMES[top]) if HOMES[top] else False, f"{relative} imports {module}; its home is {HOMES[top] or 'the command line only'}"


def test_no_import_cycles() -> None:
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in sources()}
    graph = {name: {module for module in imports(path) if module in names and not f"{name}.".startswith(f"{module}.")} for name, path in names.items()}
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> None:
        assert name not in trail, f"import cycle: {' -> '.join([*trail[trail.index(name):], name])}"
        if name in done:
            return
        for other in sorted(graph[name]):
            visit(other, [*trail, name])
        done.add(name)

    for name in sorted(graph):
        visit(name, [])


def inner_imports(path: Path) -> set[str]:
    """Modules imported inside functions or classes rather than at the top of the file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [node for outer in ast.walk(tree) if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) for node in ast.walk(outer)]
    return {node.module for node in nodes if isinstance(node, ast.ImportFrom)} | {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}


def test_inner_imports_are_listed() -> None:
    assert {(path.relative_to(ROOT).as_posix(), module) for path in sources() for module in inner_imports(path)} == LATE_IMPORTS


@pytest.mark.parametrize("path", sources(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_size_and_head_docstring(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 400, f"{path} has {text.count(chr(10))} lines, the limit is 400"
    tree = ast.parse(text)
    if len(text.splitlines()) > 5:
        assert ast.get_docstring(tree), f"{path} does not open with a docstring"
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = node.end_lineno - node.lineno + 1
            assert length <= 80, f"{path}:{node.lineno} {node.name} has {length} lines"
