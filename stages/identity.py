"""What a stage's result depends on, as one hash.

fingerprint(stage) = sha256 of its params section, the shared section, the content of its declared code dependencies and the
manifests of its upstream outputs. It keys the resume area, so an interrupted run finds its checkpoint again and a changed one
starts clean. dvc.yaml is the only place that declares dependencies; this module reads it and adds nothing.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from stages.config import StageError, read_params

MANIFEST = "manifest.json"
OUT_ROOT = Path("data/out")


@dataclass(frozen=True, slots=True)
class Declared:
    """One stage of dvc.yaml with its matrix item filled in."""

    name: str
    item: str | None
    command: str
    deps: tuple[str, ...]
    params: tuple[str, ...]
    outs: tuple[str, ...]

    @property
    def label(self) -> str:
        return self.name if self.item is None else f"{self.name}@{self.item}"


def declared_stages(root: Path) -> dict[str, Declared]:
    """Every stage of `root`/dvc.yaml in file order, matrix stages expanded: label -> Declared."""
    path = root / "dvc.yaml"
    if not path.is_file():
        raise StageError(f"{path} does not exist; run stages from the project's root folder")
    try:
        raw = YAML(typ="safe").load(path.read_text(encoding="utf-8"))["stages"]
    except YAMLError as error:
        raise StageError(f"{path} is not valid YAML: {error}") from None
    except (KeyError, TypeError) as error:
        raise StageError(f"{path} is no pipeline ({type(error).__name__}: {error}); expected YAML with a section 'stages', see `dvc stage list`") from None
    stages = [declared for name, body in raw.items() for declared in _expand(name, body)]
    return {declared.label: declared for declared in stages}


def _expand(name: str, body: dict) -> list[Declared]:
    """A stage, or one per entry of its `matrix` (one variable) or `foreach` (mapping key -> item)."""
    if "foreach" in body:
        if not isinstance(body["foreach"], dict):
            raise StageError(f"dvc.yaml stage '{name}' has a foreach over {type(body['foreach']).__name__}; expected a mapping key -> item")
        return [_declare(name, str(key), body["do"], {"${key}": str(key), "${item}": str(item)}) for key, item in body["foreach"].items()]
    if "matrix" not in body:
        return [_declare(name, None, body, {})]
    if len(body["matrix"]) != 1:
        raise StageError(f"dvc.yaml stage '{name}' has a matrix over {sorted(body['matrix'])}; expected exactly one variable")
    (variable, items), = body["matrix"].items()
    return [_declare(name, str(item), body, {"${item." + variable + "}": str(item)}) for item in items]


def _declare(name: str, item: str | None, body: dict, values: dict[str, str]) -> Declared:
    def texts(key: str) -> tuple[str, ...]:
        entries = [next(iter(entry)) if isinstance(entry, dict) else str(entry) for entry in body.get(key, [])]
        return tuple(_fill(entry, values) for entry in entries)

    return Declared(name, item, _fill(body["cmd"], values), texts("deps"), texts("params"), texts("outs"))


def _fill(text: str, values: dict[str, str]) -> str:
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return text


def find_stage(root: Path, stage: str, item: str | None) -> Declared:
    """The declared stage, or a StageError that lists what dvc.yaml has."""
    stages = declared_stages(root)
    label = stage if item is None else f"{stage}@{item}"
    if label not in stages:
        raise StageError(f"dvc.yaml declares no stage '{label}'; expected one of {', '.join(stages)}")
    return stages[label]


def fingerprint(root: Path, stage: str, item: str | None = None, params_path: Path | None = None) -> str:
    """Hex sha256 of everything the stage's result depends on. StageError when an upstream output is missing."""
    declared = find_stage(root, stage, item)
    params = read_params(params_path or root / "params.yaml")
    facts = {
        "stage": declared.label,
        "params": {key: params.get(key) for key in declared.params},
        "deps": {dep: hash_dependency(root / dep) for dep in declared.deps},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def hash_dependency(path: Path) -> str:
    """Content hash of a declared dependency: a file, a folder of sources, or a finished output (by its manifest)."""
    if path.is_dir():
        manifest = path / MANIFEST
        if manifest.is_file():
            return hash_file(manifest)
        digest = hashlib.sha256()
        for file in sorted(p for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
            digest.update(f"{file.relative_to(path).as_posix()}\0{hash_file(file)}\n".encode())
        return digest.hexdigest()
    if path.is_file():
        return hash_file(path)
    raise StageError(f"dependency {path} does not exist; make it first with `dvc repro`")


def hash_file(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def main(argv: list[str]) -> int:
    """`python -m stages.identity STAGE[@ITEM]` prints the fingerprint."""
    if len(argv) != 1:
        sys.stderr.write("usage: python -m stages.identity STAGE[@ITEM]\n")
        return 2
    stage, _, item = argv[0].partition("@")
    try:
        sys.stdout.write(fingerprint(Path.cwd(), stage, item or None) + "\n")
    except StageError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
