"""The order of stages, read from dvc.yaml: nothing here is declared a second time.

In: the project's root folder. Out: label -> labels of the stages whose outputs it reads (outputs, metrics and plots alike).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from ruamel.yaml import YAML

from stages.config import StageError
from stages.identity import declared_stages

Graph = Mapping[str, tuple[str, ...]]


def read_graph(root: Path) -> Graph:
    """Upstream stages of every stage of dvc.yaml, in an order in which they can run. StageError for a cycle or unreadable YAML."""
    stages = declared_stages(root)
    bodies = read_bodies(root)
    made = {label: _made(bodies[stage.name], stage.item) for label, stage in stages.items()}
    edges = {
        label: tuple(other for other in stages if other != label and any(_overlap(dep, out) for dep in stage.deps for out in made[other]))
        for label, stage in stages.items()
    }
    return {label: edges[label] for label in _in_order(edges)}


def read_bodies(root: Path) -> dict[str, dict]:
    """What dvc.yaml says of each stage, by its name without item."""
    return YAML(typ="safe").load((root / "dvc.yaml").read_text(encoding="utf-8"))["stages"]


def describe(body: dict) -> str:
    """The `desc` of a stage."""
    return str(body.get("do", body).get("desc", ""))


def _made(body: dict, item: str | None) -> list[str]:
    """Paths that a stage writes, with the item of its `matrix` or `foreach` filled in."""
    inner = body.get("do", body)
    entries = [entry for key in ("outs", "metrics", "plots") for entry in inner.get(key, [])]
    values = {"${key}": item, "${item}": body["foreach"][item]} if "foreach" in body else {"${item." + name + "}": item for name in body.get("matrix", ())}
    paths = [next(iter(entry)) if isinstance(entry, dict) else str(entry) for entry in entries]
    for placeholder, value in values.items():
        paths = [path.replace(placeholder, str(value)) for path in paths]
    return paths


def _overlap(dep: str, out: str) -> bool:
    """Whether one path is the other or lies inside it."""
    parts_dep, parts_out = PurePosixPath(dep).parts, PurePosixPath(out).parts
    shared = min(len(parts_dep), len(parts_out))
    return parts_dep[:shared] == parts_out[:shared]


def _in_order(edges: Graph) -> list[str]:
    """Labels with upstream first; file order among equals."""
    order: list[str] = []
    left = list(edges)
    while left:
        free = next((label for label in left if all(up in order for up in edges[label])), None)
        if free is None:
            raise StageError(f"dvc.yaml has a cycle among {', '.join(left)}; a stage may not read what it leads to")
        order.append(free)
        left.remove(free)
    return order


def select(graph: Graph, targets: Sequence[str]) -> Graph:
    """The part of the graph that leads to `targets` (all of it when empty). A matrix stage's name means all its items."""
    if not targets:
        return graph
    wanted: set[str] = set()
    for target in targets:
        named = [label for label in graph if target in (label, label.partition("@")[0])]
        if not named:
            raise StageError(f"no stage '{target}'; expected one of {', '.join(graph)}")
        wanted.update(named)
    for label in reversed(graph):
        if label in wanted:
            wanted.update(graph[label])
    return {label: upstream for label, upstream in graph.items() if label in wanted}
