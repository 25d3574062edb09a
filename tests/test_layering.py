"""Imports run one way: flows -> stages -> {models, data}; heavy libraries have one home; nothing works at import."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import ROOT

ALLOWED = {
    "flows": {"flows", "infra"},
    "stages": {"stages", "models", "data", "infra"},
    "models": {"models"},
    "data": {"data"},
    "infra": {"infra"},
}
HOMES = {  # library -> where it may be imported
    "mlflow": ("stages/tracking.py",),
    "prefect": ("flows/",),
    "deepspeed": ("stages/engine.py",),
    "streaming": ("data/",),
    "transformers": ("models/interop.py", "data/"),
    "hydra": ("stages/params.py",),
    "dvc": (),
}
LATE_IMPORTS = {  # inner imports with a reason: slow, or optional on some machines
    ("stages/runner.py", "stages.tracking"),
    ("data/tasks/reasoning_gym.py", "reasoning_gym"),
}


def sources() -> list[Path]:
    return sorted(path for package in ALLOWED for path in (ROOT / package).rglob("*.py") if "out" not in path.parts and "work" not in path.parts)


def imports(path: Path) -> list[tuple[str, bool]]:
    """(dotted module, is inside a function) of every import in the file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {id(node) for outer in ast.walk(tree) if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)) for node in ast.walk(outer)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in inner) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the full name"
            found += [(node.module, id(node) in inner)] + [(f"{node.module}.{alias.name}", id(node) in inner) for alias in node.names]
    return found


@pytest.mark.parametrize("path", sources(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_direction_and_homes(path: Path) -> None:
    relative = path.relative_to(ROOT).as_posix()
    package = relative.split("/")[0]
    for module, _ in imports(path):
        top = module.split(".")[0]
        if top in ALLOWED:
            assert top in ALLOWED[package], f"{relative} imports {module}, but {package} may import only {sorted(ALLOWED[package])}"
        if top in HOMES:
            assert relative.startswith(HOMES[top]) if HOMES[top] else False, f"{relative} imports {module}; its home is {HOMES[top] or 'the command line only'}"


def test_no_import_cycles() -> None:
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in sources()}
    graph = {name: {module for module, _ in imports(path) if module in names and module != name} for name, path in names.items()}
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


def test_inner_imports_are_listed() -> None:
    found = {(path.relative_to(ROOT).as_posix(), module) for path in sources() for module, inner in imports(path) if inner}
    roots = {(file, module) for file, module in found if not any((file, module.rsplit(".", 1)[0]) == other for other in found)}
    assert roots == LATE_IMPORTS


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
