"""Parameters: params.yaml -> the validated Config of one stage.

In: params.yaml (YAML 1.2, so 1e-4 is a number) and the pydantic class of a stage. Out: a frozen object, or a StageError that
names the key, what was got, what is expected and the remedy, before any tensor exists. Nothing has a default here: a missing
key is as much an error as an unknown one, so that a value cannot change without params.yaml showing it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError


class StageError(ValueError):
    """Bad input or configuration, found before work is lost. The runner turns it into exit code 2."""


class Section(BaseModel):
    """Base of every stage's Config: frozen, strict types, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class Shared(Section):
    """The section every stage sees."""

    profile: str
    """Name of the profile that params.yaml was composed from."""
    seed: int = Field(ge=0)
    """Seed of every random choice in the pipeline."""


ConfigT = TypeVar("ConfigT", bound=Section)


def read_params(path: Path) -> dict[str, object]:
    """Parse a parameter file. StageError when it is missing, unreadable or not a mapping."""
    if not path.is_file():
        raise StageError(f"parameter file {path} does not exist; write one with `python -m stages.params --profile nano`")
    try:
        params = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except (YAMLError, UnicodeDecodeError) as error:
        raise StageError(f"parameter file {path} is not valid YAML: {error}") from error
    if not isinstance(params, dict):
        raise StageError(f"parameter file {path} holds {type(params).__name__}, expected a mapping of stage sections")
    return params


def parse_section(cls: type[ConfigT], name: str, params: dict[str, object]) -> ConfigT:
    """Validate section `name` of `params` as `cls`. StageError lists every bad key at once."""
    if name not in params:
        raise StageError(f"params have no section '{name}' (got {', '.join(sorted(params))}); compose them again with `python -m stages.params`")
    try:
        return cls.model_validate(params[name])
    except ValidationError as error:
        raise StageError("\n".join(_explain(name, issue) for issue in error.errors())) from None


def flatten(section: str, value: object) -> dict[str, object]:
    """Nested mappings to dotted keys, as the tracker and the parameter tables show them."""
    if isinstance(value, dict) and value:
        return {key: leaf for name, inner in value.items() for key, leaf in flatten(f"{section}.{name}", inner).items()}
    return {section: value}


def _explain(section: str, issue: dict) -> str:
    key = ".".join([section, *map(str, issue["loc"])])
    if issue["type"] == "extra_forbidden":
        return f"{key}: unknown parameter (got {issue['input']!r}); remove it or correct its spelling in stages/conf"
    if issue["type"] == "missing":
        return f"{key}: missing; add it in stages/conf and compose params.yaml again"
    return f"{key}: got {issue['input']!r} ({type(issue['input']).__name__}), expected: {issue['msg'].removeprefix('Value error, ')}; change it in stages/conf"
