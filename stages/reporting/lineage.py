"""Where the report's numbers come from: code, parameters, inputs, software.

In: the manifests that the runner writes into every finished output, the repository, the installed packages. Out: plain records.
Parameters are read from the manifests, not from params.yaml: they are the ones each result was really made with.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from stages.config import StageError, flatten
from stages.identity import MANIFEST, hash_file
from stages.reporting.values import MISSING

# Written by the pipeline itself while it runs, so a change in them is no change of code.
GENERATED = ("dvc.lock", "metrics")
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "mosaicml-streaming", "pydantic", "dvc", "mlflow", "prefect")


@dataclass(frozen=True, slots=True)
class CodeState:
    """Commit of the code, None outside a repository or before its first commit; whether files differ from it."""

    commit: str | None
    dirty: bool


@dataclass(frozen=True, slots=True)
class Origin:
    """One finished output: dependency name, sha256 of its manifest, number and total size of its files."""

    name: str
    sha256: str
    num_files: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter by its dotted name. `values` has more than one entry when outputs were made with different values."""

    name: str
    values: tuple[str, ...]


def code_state(root: Path) -> CodeState:
    """Commit and dirty flag of the repository at `root`. Files that the pipeline writes do not count as changes."""
    head = _git(root, "rev-parse", "HEAD")
    if head is None:
        return CodeState(None, False)
    excluded = [f":(exclude){name}" for name in GENERATED]
    return CodeState(head.strip(), bool((_git(root, "status", "--porcelain", "--", ".", *excluded) or "").strip()))


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "--no-optional-locks", *words], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # a machine without git
        return None
    return done.stdout if done.returncode == 0 else None


def read_manifest(name: str, folder: Path) -> dict:
    """The manifest of a finished output. StageError when it is missing or not one."""
    path = folder / MANIFEST
    if not path.is_file():
        raise StageError(f"input '{name}' at {folder} has no {MANIFEST}, so it is not a finished output; make it again with `dvc repro`")
    manifest = json.loads(path.read_text(encoding="utf-8"))
    missing = {"params", "files"} - manifest.keys()
    if missing:
        raise StageError(f"{path} lacks {sorted(missing)}; make the output again with `dvc repro`")
    return manifest


def origins(folders: Mapping[str, Path]) -> list[Origin]:
    """One record per input, in the given order."""
    found = []
    for name, folder in folders.items():
        files = read_manifest(name, folder)["files"].values()
        found.append(Origin(name, hash_file(folder / MANIFEST), len(files), sum(entry["bytes"] for entry in files)))
    return found


def parameters(folders: Mapping[str, Path]) -> dict[str, list[Parameter]]:
    """Section -> its parameters, over all inputs, the shared section first.

    A parameter that two inputs state differently keeps both values.
    """
    seen: dict[str, dict[str, list[str]]] = {}
    for name, folder in folders.items():
        for section, content in read_manifest(name, folder)["params"].items():
            for parameter in as_parameters(section, content):
                texts = seen.setdefault(section.partition(".")[0], {}).setdefault(parameter.name, [])
                texts += [text for text in parameter.values if text not in texts]
    order = sorted(seen, key=lambda section: section != "shared")
    return {section: [Parameter(key, tuple(texts)) for key, texts in sorted(seen[section].items())] for section in order}


def as_parameters(section: str, content: object) -> list[Parameter]:
    """One section of parameters, flattened to dotted names."""
    return [
        Parameter(key, (value if isinstance(value, str) else json.dumps(value),))
        for key, value in sorted(flatten(section, content).items())
    ]


def software() -> list[tuple[str, str]]:
    """Interpreter and package versions that can move a number or a file format."""
    return [(platform.python_implementation(), platform.python_version()), *((name, _version(name)) for name in PACKAGES)]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return MISSING
