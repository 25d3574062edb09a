"""Recipe `stdlib`: the running Python's standard library, as code or as prose. On every machine; PSF licence.

In: the .py files of the standard library, tests and generated tables left out, in sorted order. Out: `code`, one document a file;
or `docs`, one document a module with all its documentation strings, plus the language reference topics behind help().
A module's code and its documentation fall into the same split, because the one quotes the other.
The files differ between Python versions and builds, so data/interpreter.json records their hash in git: another Python is another
input, seen by DVC and by `prepare`. `python -m data.recipes.stdlib` rewrites that record, `--check` only compares.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import sys
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data.recipes.recipe import Part, Record, Scope

RECORD = Path(__file__).resolve().parents[1] / "interpreter.json"
# Tests and third-party code; packages that a distribution may install apart or not at all, which would change the corpus
# with every such package; and encodings, which is nothing but generated tables.
_SKIPPED_FOLDERS = {"__pycache__", "dist-packages", "distutils", "encodings", "ensurepip", "idle_test", "idlelib", "lib2to3",
                    "lib-dynload", "site-packages", "test", "tests", "tkinter", "turtledemo"}
_FILES_PER_PART = 64


@dataclass(frozen=True, kw_only=True)
class Stdlib:
    """Options: `kind`, "code" or "docs"."""

    __pydantic_config__ = {"extra": "forbid", "strict": True}
    kind: Literal["code", "docs"]

    def parts(self, scope: Scope) -> list[Part]:
        files = stdlib_files()
        return [tuple(files[start : start + _FILES_PER_PART]) for start in range(0, len(files), _FILES_PER_PART)]

    def stamp(self, part: Part) -> str:
        return _digest(part)

    def read(self, part: Part, scope: Scope) -> Iterator[Record]:
        for name in part:
            source = _decode(stdlib_folder() / name)
            if name == "pydoc_data/topics.py":
                yield from map(Record, _topics(source)) if self.kind == "docs" else ()
            elif source is None or self.kind == "code":
                yield Record(source, group=f"stdlib/{name}")
            else:
                yield Record(_docstrings(name, source), group=f"stdlib/{name}")


def stdlib_folder() -> Path:
    """Where this interpreter keeps its library sources."""
    return Path(sysconfig.get_path("stdlib"))


def stdlib_files() -> list[str]:
    """Sorted relative posix paths of the library's sources. ValueError when they are not on disk."""
    root, found = stdlib_folder(), []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _SKIPPED_FOLDERS and not name.startswith("config-")]
        found += [Path(folder, name).relative_to(root).as_posix() for name in names if name.endswith(".py") and _is_library(name)]
    if not found:
        raise ValueError(f"no library sources under {root}; expected a Python with its .py files (not zipped or frozen)")
    return sorted(found)


def _is_library(name: str) -> bool:
    """Build settings and a site's own start-up hooks differ between machines with the very same Python."""
    return not name.startswith("_sysconfigdata") and name not in ("sitecustomize.py", "usercustomize.py")


def _decode(path: Path) -> str | None:
    """A source file by its declared encoding, or None when it does not decode."""
    try:
        with tokenize.open(path) as handle:
            return handle.read()
    except (SyntaxError, UnicodeDecodeError):
        return None


def _docstrings(name: str, source: str) -> str | None:
    """Every documentation string of a module under its dotted name; "" when there is none, None when it does not parse."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return "\n\n".join(f"{dotted}\n{doc}" for dotted, doc in _walk(module, tree))


def _walk(dotted: str, node: ast.AST) -> Iterator[tuple[str, str]]:
    doc = ast.get_docstring(node)
    if doc and doc.strip():
        yield dotted, doc.strip()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _walk(f"{dotted}.{child.name}", child)


def _topics(source: str | None) -> Iterator[str | None]:
    """The reference topics: a module that assigns one dictionary, read without running it."""
    if source is None:
        yield None
        return
    tables = [node.value for node in ast.parse(source).body if isinstance(node, ast.Assign)]
    for table in tables:
        yield from (text for _, text in sorted(ast.literal_eval(table).items()))


def identity() -> dict[str, object]:
    """What the recipe's text depends on: implementation, version, hash and number of the library's files."""
    files = stdlib_files()
    return {"files": len(files), "implementation": platform.python_implementation(), "python": platform.python_version(), "stdlib_sha256": _digest(files)}


def _digest(files: tuple[str, ...] | list[str]) -> str:
    digest, root = hashlib.sha256(), stdlib_folder()
    for name in files:
        digest.update(f"{name}\0{hashlib.sha256((root / name).read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def difference(record: Path = RECORD) -> list[str]:
    """Each fact in which this interpreter differs from the record, as "name: old -> new"; empty when they agree."""
    old = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    new = identity()
    return [f"{name}: {old.get(name, 'none')} -> {new.get(name, 'none')}" for name in sorted({*old, *new}) if old.get(name) != new.get(name)]


def main(argv: list[str], record: Path = RECORD) -> int:
    """Write the record when it differs (exit 0), or with --check only compare (exit 2 when it differs)."""
    if argv not in ([], ["--check"]):
        sys.stderr.write("usage: python -m data.recipes.stdlib [--check]\n")
        return 2
    changes = difference(record)
    if not changes:
        sys.stdout.write(f"{record.name} agrees with this interpreter\n")
        return 0
    for change in changes:
        sys.stdout.write(f"{record.name}: {change}\n")
    if argv:
        sys.stdout.write("run `python -m data.recipes.stdlib` to record this interpreter\n")
        return 2
    temporary = record.with_name(f".{record.name}.tmp")
    temporary.write_text(json.dumps(identity(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(temporary, record)
    sys.stdout.write("recorded; `prepare` will rerun, because its input changed\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
