"""The lineage section: commit, outputs with their hashes, parameters, software.

In: records of stages/reporting/lineage.py. Out: one section of the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stages.reporting.lineage import CodeState, Origin, Parameter
from stages.reporting.markup import Markup, join, tag
from stages.reporting.page import Column, Part, folded, numeric, paragraph, remark, table, warning
from stages.reporting.values import count, size


def section(
    code: CodeState,
    origins: Sequence[Origin],
    parameters: Mapping[str, Sequence[Parameter]],
    software: Sequence[tuple[str, str]],
    interpreter: str,
) -> Part:
    """Everything needed to make the same numbers again. `interpreter` is the one whose library was read as text, if any."""
    note = (
        "Parameters are those recorded in each output\u2019s manifest when it was made. No date, machine name or run number "
        "is shown: the same inputs give this page again, byte for byte."
    )
    body = [_code(code), *_conflicts(parameters), _hashes(origins), tag("h3", "Parameters"), *_parameters(parameters)]
    body += [tag("h3", "Software"), _versions(software)]
    if interpreter:
        body.append(remark(f"Pretraining text from {interpreter}."))
    return Part("lineage", "Lineage", note, join(body))


def _hashes(origins: Sequence[Origin]) -> Markup:
    columns = [Column("output"), *numeric("files", "size"), Column("SHA-256 of its manifest, which lists the hash of every file")]
    rows = [[origin.name, count(origin.num_files), size(origin.num_bytes), tag("span", origin.sha256, class_="hash")] for origin in origins]
    return table("Outputs that this page was made from", columns, rows)


def _versions(software: Sequence[tuple[str, str]]) -> Markup:
    return table(
        "Interpreter and packages", [Column("package"), Column("version")], [[name, tag("code", version)] for name, version in software]
    )


def _code(code: CodeState) -> Markup:
    if code.commit is None:
        return warning(["The code is not in a Git commit, so only the hashes below identify it."])
    commit = tag("code", code.commit)
    if code.dirty:
        return warning(["Commit ", commit, " with uncommitted changes: the commit alone does not identify the code that wrote this page."])
    return paragraph(join(["Commit ", commit, ", no uncommitted changes."]))


def _conflicts(parameters: Mapping[str, Sequence[Parameter]]) -> list[Markup]:
    names = [parameter.name for rows in parameters.values() for parameter in rows if len(parameter.values) > 1]
    return (
        [warning([f"Outputs were made with different values of {', '.join(names)}. Run `dvc repro` to make them alike."])] if names else []
    )


def _parameters(parameters: Mapping[str, Sequence[Parameter]]) -> list[Markup]:
    return [folded(f"{name} ({len(rows)})", _values(name, rows)) for name, rows in parameters.items()]


def _values(name: str, rows: Sequence[Parameter]) -> Markup:
    body = [[row.name, tag("code", " and ".join(row.values))] for row in rows]
    return table(f"Parameters of {name}", [Column("parameter"), Column("value")], body)
